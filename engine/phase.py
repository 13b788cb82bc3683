"""Phase: the pieces of work between which every actor of the engine yields.

A role goes through its phases in order, again and again. Between two of them anybody else may act:
the other role, the wire, a client, a timer. A real deployment interleaves at these same points,
since its roles are processes that share nothing but the wire.
"""

from enum import StrEnum


class Actor(StrEnum):
    """Who may act in a step; the simulator chooses, everybody else takes all three in order."""

    DECODE = "decode"
    WIRE = "wire"
    PREFILL = "prefill"


class Phase(StrEnum):
    """One piece of work that nobody interrupts; its end is a yield point."""

    DECODE_SWEEP = "decode.sweep"  # pages whose writer is done go back to the pool
    DECODE_GENERATE = "decode.generate"  # one token for each running request
    DECODE_FOLLOW = "decode.follow"  # hand-offs are taken, failures and timeouts noticed
    DECODE_RESUME = "decode.resume"  # those whose pages were taken back return
    DECODE_RESERVE = "decode.reserve"  # pages for new prompts are reserved and published
    WIRE_MOVE = "wire.move"  # some posted pages arrive
    PREFILL_FOLLOW = "prefill.follow"  # decode's pages are seen, ended transfers closed
    PREFILL_ADMIT = "prefill.admit"  # prompts get their pages
    PREFILL_COMPUTE = "prefill.compute"  # one batch of chunks, computed and posted


# In the order in which an actor goes through them.
PHASES: dict[Actor, tuple[Phase, ...]] = {
    actor: tuple(phase for phase in Phase if phase.startswith(f"{actor}.")) for actor in Actor
}
