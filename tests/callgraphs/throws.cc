// Frames with exceptions in flight: destructors on the way, handlers, what is thrown again.
#include "tests/callgraphs/callgraphs.h"

#include <exception>
#include <stdexcept>

namespace
{

struct Guard {
    uint64_t way;
    unsigned levels;
    bool goes;
    ~Guard()
    {
        if (!goes)
            return;
        check();
        go_on(way, levels);
        sink++;
    }
};

struct Thrown {
    uint64_t way;
    explicit Thrown(uint64_t which) : way(which)
    {
    }
    Thrown(const Thrown &other) : way(other.way)
    {
        check();
    }
    ~Thrown()
    {
        check();
    }
};

NOINLINE void thrower(uint64_t way, unsigned more)
{
    volatile char *room = static_cast<volatile char *>(__builtin_alloca(16 + way % 3 * 32));
    room[0] = 1;
    if (more > 0)
        thrower(mix(way), more - 1);
    count(THROWN);
    throw Thrown(way);
}

NOINLINE void passes(uint64_t way, unsigned levels, bool goes)
{
    Guard guard{way, levels, goes};
    Guard outer{way, 0, way % 4 == 0};
    thrower(way, static_cast<unsigned>(way % 3));
    sink++;
}

NOINLINE void in_destructor(uint64_t way, unsigned levels)
{
    try {
        passes(way, levels, true);
    } catch (const Thrown &thrown) {
        sink += static_cast<unsigned>(thrown.way);
    }
    check();
}

NOINLINE void in_handler(uint64_t way, unsigned levels)
{
    try {
        passes(way, 0, false);
    } catch (...) {
        go_on(way, levels);
        sink++;
    }
    check();
}

NOINLINE void again(uint64_t way, unsigned levels)
{
    Guard guard{way, 0, true};
    try {
        passes(way, levels, way % 2 != 0);
    } catch (const Thrown &) {
        check();
        throw;
    }
}

NOINLINE void thrown_again(uint64_t way, unsigned levels)
{
    try {
        again(way, levels);
    } catch (Thrown copy) {
        go_on(way, levels / 2);
        sink += static_cast<unsigned>(copy.way);
    }
}

// By way of the library: an exception that is kept, and thrown elsewhere.
NOINLINE void kept(uint64_t way, unsigned levels)
{
    std::exception_ptr pointer;
    try {
        thrower(way, 1);
    } catch (...) {
        pointer = std::current_exception();
    }
    try {
        Guard guard{way, levels, true};
        std::rethrow_exception(pointer);
    } catch (const Thrown &) {
        check();
    }
}

} // namespace

form_t *const forms_throws[THROWS] = {in_destructor, in_handler, thrown_again, kept};
