"""All interleavings of the wrapper of a submission with a free and a request (pool/fence/order.h): some
threads, two streams, and a device that finishes work when it likes. A kernel that reaches a block
whose former owner's kernels it is not ordered behind is a fault.

Each step reads or writes one shared word, or makes one call of the driver; what is done under the
lock of the order is one step. Only the comparison with the current stream is made without it. What
the programs do is in PROGRAMS.

    order_model.py [MUTATION]    prints how many states there are, and the first fault
"""
import collections
import sys

# What a deliberate fault leaves out.
MUTATIONS = {
    "order_once": "no look before the call",
    "order_jumps": "no look after the call",
    "order_unlocked": "a look writes the fence's number and the stream one after the other",
    "order_unsure": "so does a request read them, and opens its debt after that",
    "order_flag": "what a stream has paid is a flag, and no number",
    "order_not_woken": "a free has the newest fence, whatever was submitted since",
    "order_several_kept": "a thread on several streams learns of no fence that is begun",
    "order_woken_early": "the look before the call says that something is submitted, none after it",
}

S, T = 0, 1
NAMES = "ST"
SEVERAL = 2  # instead of the current stream: its last changer goes on with any

# The steps that come under the lock, together with the one before them.
LOCKED = {"submit": {2, 3, 4, 8, 9}, "request": {2, 3, 4}}
UNLOCKED = {"order_unlocked": "submit", "order_unsure": "request"}

# What each thread does. ("submit", stream, block or None), ("free", block), ("request",
# block): until the block is handed out, as nothing goes on with another one; ("give", flag) and
# ("take", flag): the other thread goes on from there.
PROGRAMS = {
    "handed over": (
        [("submit", S, "x"), ("free", "x"), ("request", "x"), ("give", 0), ("submit", S, "x")],
        [("submit", T, None), ("take", 0), ("submit", T, "x")]),
    "a call that is late": (
        [("submit", S, "y"), ("free", "y"), ("request", "y"), ("submit", S, "y"), ("free", "y"),
         ("take", 0), ("free", "x"), ("request", "x"), ("submit", S, "x")],
        [("submit", T, "x"), ("give", 0)]),
    "a look that is late": (
        [("submit", S, "x"), ("submit", S, None), ("free", "x"), ("request", "x"), ("give", 0)],
        [("submit", S, None), ("submit", T, None), ("take", 0), ("submit", T, "x")]),
    "two debts": (
        [("submit", S, "x"), ("free", "x"), ("request", "x"), ("give", 0), ("take", 1),
         ("submit", S, None), ("free", "y"), ("request", "y"), ("submit", S, "y"), ("free", "y"),
         ("request", "y"), ("give", 2)],
        [("take", 0), ("submit", T, "x"), ("give", 1), ("take", 2), ("submit", T, "y")]),
    "a free within a look": (
        [("submit", S, None), ("take", 0), ("free", "x"), ("request", "x"), ("submit", S, "x")],
        [("submit", T, None), ("free", "y"), ("submit", T, "x"), ("give", 0)]),
    "a third thread": (
        [("submit", T, None), ("submit", S, None)],
        [("submit", T, "x"), ("give", 0)],
        [("take", 0), ("free", "x"), ("request", "x"), ("submit", S, "x")]),
    "a shared fence": (
        [("submit", S, "x"), ("submit", S, "y"), ("free", "x"), ("free", "y"), ("request", "x"),
         ("submit", S, "x"), ("free", "x"), ("request", "x"), ("give", 0)],
        [("submit", S, None), ("take", 0), ("submit", T, "x")]),
    "a submission within a record": (
        [("submit", S, "x"), ("free", "x"), ("take", 0), ("free", "y"), ("request", "y"),
         ("give", 1)],
        [("submit", S, "y"), ("give", 0), ("take", 1), ("submit", T, "y")]),
    "a thread on several streams": (
        [("submit", S, None), ("submit", T, "x"), ("give", 0), ("submit", S, None)],
        [("take", 0), ("free", "y"), ("free", "x"), ("request", "x"), ("submit", S, "x")]),
    "a fence between its streams": (
        [("submit", S, None), ("submit", T, None), ("submit", S, None), ("free", "y"),
         ("submit", T, "x"), ("free", "x"), ("request", "x"), ("submit", S, "x"), ("free", "x"),
         ("request", "x"), ("submit", S, "x"), ("free", "x"), ("request", "x"), ("submit", S, "x"),
         ("free", "x"), ("request", "x"), ("submit", T, "x")],),
    "both free": (
        [("submit", S, "x"), ("free", "x"), ("request", "x"), ("submit", S, "x"), ("give", 0)],
        [("submit", S, "y"), ("free", "y"), ("request", "y"), ("take", 0), ("submit", T, "x"),
         ("submit", T, "y")]),
}

State = collections.namedtuple("State", [
    "newest",     # number of the newest fence, taken before its record
    "quiet",      # that number, while nothing has been submitted since; 0
    "fences",     # of each that was recorded: how much of each stream it covers
    "passed",     # the newest that is known to have passed
    "several",    # until a fence of this number has passed there is work on several streams
    "current",    # stream of the last submission, None before the first; SEVERAL: it is
    "last",       # that one
    "changer",    # the thread that changed it
    "debt",       # (fence, owner)
    "recording",  # the thread that records
    "work",       # of each stream: ((block, owner's number, what it is ordered behind), ...)
    "done",       # of each stream: how many have ended
    "behind",     # of each stream: how much of each stream what comes now is ordered behind
    "paid",       # of each stream: the newest fence that it waited for
    "blocks",     # of x, y: (owner's number, fence of the free or None)
    "flags",
    "threads",    # of each: (operation, step, what it remembers)
])

START = State(0, 0, (), 0, 0, None, None, None, (0, None), None, ((), ()), (0, 0), ((0, 0), (0, 0)), (0, 0),
              ((0, None), (0, None)), frozenset(), ())


class Fault(Exception):
    pass


def put(values, index, value):
    return values[:index] + (value,) + values[index + 1:]


def has_passed(state, fence):
    return fence <= len(state.fences) and all(
        have >= need for have, need in zip(state.done, state.fences[fence - 1]))


def call(state, stream, block):
    """The driver's call: the kernel is in the stream now, and must be behind all that it has to."""
    owner = None
    if block:
        owner = state.blocks["xy".index(block)][0]
        for other, queue in enumerate(state.work):
            for at, (that, former, _) in enumerate(queue):
                if (that == block and former < owner and at >= state.done[other] and
                        other != stream and at >= state.behind[stream][other]):
                    raise Fault(f"the kernel of owner {owner} of {block} on {NAMES[stream]} is not "
                                f"behind that of owner {former} on {NAMES[other]}")
    queue = state.work[stream] + ((block, owner, state.behind[stream]),)
    return state._replace(work=put(state.work, stream, queue))


def elsewhere(state, step, memory):
    """Writes (fence number, stream): step 1 reads the number, 2 and 3 write."""
    if step == 1:
        return state, state.newest + 1
    if step == 2:
        return state._replace(several=max(state.several, memory)), None
    return state, None


def pay(state, stream, mutation):
    fence, owner = state.debt
    paid = state.paid[stream] > 0 if mutation == "order_flag" else state.paid[stream] >= fence
    if not fence or owner == stream or paid:
        return state
    covers = state.fences[fence - 1]
    behind = tuple(map(max, state.behind[stream], covers))
    behind = put(behind, stream, 0)
    return state._replace(behind=put(state.behind, stream, behind),
                          paid=put(state.paid, stream, fence))


def stream_now(state):
    return state.last if state.current == SEVERAL else state.current


def change(state, thread, stream):
    owed = state.debt[0] > state.passed
    several = state.changer == thread and not owed
    return state._replace(current=SEVERAL if several else stream, last=stream, changer=thread)


def submit(state, thread, step, memory, stream, block, mutation):
    """(state, next step or None at the end, memory)"""
    if (step == 6 and mutation not in ("order_not_woken", "order_jumps", "order_woken_early") or
            step == 0 and mutation == "order_woken_early"):
        state = state._replace(quiet=0)
    if step == 0 and state.current is None:  # the first of all
        return state._replace(current=stream, changer=thread), 4, None
    if step == 0 and (state.current, state.changer) == (SEVERAL, thread):
        return state, 10, None
    if step == 0:  # the look before
        look = stream_now(state) != stream and mutation != "order_once"
        return state, 1 if look else 5, None
    if step in (1, 2):
        state, memory = elsewhere(state, step, memory)
        return state, step + 1, memory
    if step == 3:
        return change(state, thread, stream), 4, None
    if step == 4:
        return pay(state, stream, mutation), 5, None
    if step == 10:
        return state._replace(last=stream), 5, SEVERAL
    if step == 5:
        return call(state, stream, block), 6, memory
    if step == 6:  # the look after
        seen = (SEVERAL,) if memory == SEVERAL else (SEVERAL, stream)
        look = state.current not in seen and mutation != "order_jumps"
        return state, 7 if look else None, None
    if step in (7, 8):
        state, memory = elsewhere(state, step - 6, memory)
        return state, step + 1, memory
    return state, None, None


def free(state, thread, step, block, mutation):
    index = "xy".index(block)
    if step == 0 and 0 < state.quiet <= len(state.fences):  # one that was recorded
        blocks = put(state.blocks, index, (state.blocks[index][0], state.quiet))
        return state._replace(blocks=blocks), None, None
    if step == 0:  # one recorder at a time
        return (None if state.recording is not None else state._replace(recording=thread)), 1, None
    if step == 1:
        number = state.newest + 1
        if mutation != "order_several_kept":
            state = state._replace(current=stream_now(state))
        return state._replace(newest=number, quiet=number), 2, number
    fences = state.fences + (tuple(map(len, state.work)),)
    blocks = put(state.blocks, index, (state.blocks[index][0], len(fences)))
    return state._replace(fences=fences, blocks=blocks, recording=None), None, None


def hand_out(state, index):
    owner, _ = state.blocks[index]
    return state._replace(blocks=put(state.blocks, index, (owner + 1, None)))


def request(state, step, memory, block, mutation):
    """(state, next step or None at the end, memory): another way than in flight begins anew."""
    index = "xy".index(block)
    fence = state.blocks[index][1]
    if step == 0:  # asks the newest fence that has passed
        passed = max([n for n in range(1, len(state.fences) + 1) if has_passed(state, n)],
                     default=0)
        state = state._replace(passed=max(state.passed, passed))
        if state.passed >= fence:
            return hand_out(state, index), None, None
        return state, 1, None
    if step == 1:
        return state, 2, stream_now(state)
    if step == 2:
        return state, 0 if state.several > state.passed or memory is None else 3, memory
    if step == 3:
        number = max(fence, state.debt[0]) if state.debt[1] == memory else fence
        return state._replace(debt=(number, memory)), 4, memory
    return hand_out(state, index), None, None


def step_of(state, thread, programs, mutation):
    """The state after the next step of `thread`, or None where it has none."""
    at, step, memory = state.threads[thread]
    program = programs[thread]
    if at == len(program):
        return None
    what, *words = program[at]
    if what == "submit":
        state, step, memory = submit(state, thread, step, memory, *words, mutation)
    elif what == "free":
        state, step, memory = free(state, thread, step, *words, mutation)
    elif what == "request":
        state, step, memory = request(state, step, memory, *words, mutation)
    elif what == "give":
        state, step = state._replace(flags=state.flags | {words[0]}), None
    elif words[0] in state.flags:
        step = None
    else:
        return None
    if state is None:
        return None
    place = (at + 1, 0, None) if step is None else (at, step, memory)
    state = state._replace(threads=put(state.threads, thread, place))
    if step in LOCKED.get(what, ()) and UNLOCKED.get(mutation) != what:
        return step_of(state, thread, programs, mutation)
    return state


def device_steps(state):
    for stream, queue in enumerate(state.work):
        at = state.done[stream]
        if at < len(queue) and all(have >= need for have, need in zip(state.done, queue[at][2])):
            yield state._replace(done=put(state.done, stream, at + 1))


def explore(programs, mutation=None):
    """(number of states, the first fault or None, how often a debt was opened)"""
    start = START._replace(threads=((0, 0, None),) * len(programs))
    seen, left, in_flight = {start}, [start], 0
    while left:
        state = left.pop()
        after = list(device_steps(state))
        for thread in range(len(programs)):
            try:
                then = step_of(state, thread, programs, mutation)
            except Fault as fault:
                return len(seen), str(fault), in_flight
            if then is not None:
                after.append(then)
                in_flight += then.debt != state.debt
        for then in after:
            if then not in seen:
                seen.add(then)
                left.append(then)
    return len(seen), None, in_flight


def main():
    mutation = sys.argv[1] if len(sys.argv) > 1 else None
    if mutation and mutation not in MUTATIONS:
        sys.exit(f"{mutation} is none of {', '.join(MUTATIONS)}")
    for name, programs in PROGRAMS.items():
        states, fault, in_flight = explore(programs, mutation)
        print(f"{name}: {states} states, {in_flight} debts, {fault or 'no fault'}")


if __name__ == "__main__":
    main()
