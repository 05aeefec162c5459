# The programs of `make bench`: bench.c and the cases with one allocator family each.
#
# $B/bench/cuda, libc, calls, stacks, fit are built with the tests; stacks is of the registry's
# objects.
# $B/bench/cub needs CCCL's headers (the toolkit's, or those that RMM brings), $B/bench/rmm what
# scripts/peers.sh brings; both are left out where they are not.
PEERS := build/peers
CUB_INC := $(firstword $(patsubst %/cub/util_allocator.cuh,%,$(wildcard $(CUDA_INC)/cccl/cub/util_allocator.cuh \
    $(CUDA_INC)/cub/util_allocator.cuh $(PEERS)/rapids/cub/util_allocator.cuh)))

BENCH_CASES := $(patsubst %,$B/obj/tests/bench/%.o,bench cases prodcons busy)
BENCH_FOUND := $(if $(CUB_INC),$B/bench/cub) $(if $(wildcard $(PEERS)/rmm),$B/bench/rmm)
BENCH_OWN := $(addprefix $B/bench/,cuda libc calls stacks fit)
BENCH_PYTHON := $B/bench/python_part.so
BENCH := $(BENCH_OWN) $(BENCH_FOUND)

$(addprefix $B/bench/,cuda libc cub rmm): $B/bench/%: $(BENCH_CASES) $B/obj/tests/bench/peer_%.o
$B/bench/calls $B/bench/fit: $B/bench/%: $B/obj/tests/bench/%.o
$B/bench/stacks: $B/obj/tests/bench/stacks.o $(filter-out $B/obj/pool/%,$(CORE_OBJ))
$B/obj/tests/bench/python_part.o: ALL_CFLAGS += -ftls-model=initial-exec
# libcachealloc.so with a stopwatch around what Python frames take of a capture.
$(BENCH_PYTHON): $B/obj/tests/bench/python_part.o $(CORE_OBJ) $(SHIM_OBJ) $B/exports.map
	@mkdir -p $(@D)
	$(CC) $(OPT) -shared -o $@ $(filter %.o,$^) -Wl,--version-script=$B/exports.map -Wl,-Bsymbolic \
	    -Wl,-z,relro,-z,now,-z,nodelete \
	    -Wl,--wrap=ca_stack_capture,--wrap=ca_python_here,--wrap=ca_python_find,--wrap=ca_python_keep \
	    $(SO_UNDEF) -ldl -lpthread $(LDFLAGS)
$(BENCH): LINK = -L$(SIM) -lcudart -lcuda
$(BENCH): | simcuda
$B/bench/cub $B/bench/rmm: LINKER = $(CXX)
$B/bench/rmm: LINK += -L$(PEERS)/lib64 -lrmm -lrapids_logger -Wl,-rpath,$(abspath $(PEERS)/lib64)

# Not under a sanitizer: what it would measure is the sanitizer.
ifneq ($(filter release debug,$(BUILD)),)
TEST_TOOLS += $(BENCH_OWN) $(BENCH_PYTHON)
endif

$(BENCH_CASES) $(patsubst %,$B/obj/tests/bench/%.o,peer_cuda peer_libc calls fit): | $(CUDA_INC)/cuda.h
$B/obj/tests/bench/%.o: ALL_CFLAGS += -isystem $(CUDA_INC)
# Or its fixed work would take longer in one program than in another, by where it comes to lie.
$B/obj/tests/bench/bench.o: ALL_CFLAGS += -falign-loops=64
$B/obj/tests/bench/peer_cub.o: ALL_CFLAGS += -isystem $(CUB_INC)
$B/obj/tests/bench/peer_rmm.o: ALL_CFLAGS += -isystem $(PEERS)/rapids -isystem $(PEERS) -DNDEBUG
