"""What robots record: topics of MCAP files and ROS bags, shown at the ticks of one clock."""
