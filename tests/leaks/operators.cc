/* Operators and virtual functions; managed memory for a class.
 *
 * builds: g0
 * expect: 6144 bytes in 3, managed: ... < table::operator new(unsigned long)@new <
 *     maker::make() const@make < main@main
 */
#include "tests/leaks/leak.h"

struct table {
    FRAME static void *operator new(size_t bytes)
    {
        void *pointer = nullptr;
        OK(cudaMallocManaged(&pointer, bytes, cudaMemAttachGlobal)); /* @new */
        return pointer;
    }
    static void operator delete(void *pointer)
    {
        cudaFree(pointer);
    }
    char data[2048];
};

struct base {
    virtual table *make() const = 0;
    virtual ~base() = default;
};

struct maker final : base {
    FRAME table *make() const override
    {
        table *made = new table; /* @make */
        made->data[0] = 1;
        return made;
    }
};

int main()
{
    maker one;
    const base &asked = one;
    for (int i = 0; i < 3; i++)
        CHECK(asked.make()->data[0] == 1); /* @main */
    return 0;
}
