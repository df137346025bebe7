"""``rankmem fragmentation``: what the allocator loses, and which of its settings would give it back."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format


@options.reads
def fragmentation(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show what fragmentation loses, and which setting saves it.

    Replays every allocation of the highest rank, or of --rank, under other settings of PyTorch's caching
    allocator. The default ones and three of the others were checked on a GPU, all against PyTorch's own
    allocator on a simulated device.
    Exit code 2: cannot tell, with the reason: on a CPU, or if the replay does not reproduce the recording.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.fragmentation(facts.session_id, rank=rank),
        lambda answer: columns.fragmentation(),
        output=output,
        fail_on=fail_on,
    )
