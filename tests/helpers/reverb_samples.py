"""Samples of servers by Reverb's names."""

from stepwell import reverb


def drained(client: reverb.Client, table: str, count: int | None = None) -> list[reverb.ReplaySample]:
    """Return what is in a queue, or ``count`` samples of a table."""
    number = client.server_info()[table].current_size if count is None else count
    return list(client.sample(table, number, emit_timesteps=False)) if number else []
