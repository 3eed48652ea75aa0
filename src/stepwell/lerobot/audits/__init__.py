"""The checks of `stepwell.lerobot.audit`: a module for each thing that is looked at; see the README beside."""
