# cachealloc: build, test, install. `make help` lists the targets.
#
# BUILD=release|debug|asan|tsan picks the flavour; each has a directory of its own and release is
# build/. BUILD=portable is release for every distribution with glibc 2.28 or later, BUILD=aarch64 the
# same for that architecture, by a cross compiler, BUILD=clang release by that compiler, and
# BUILD=fuzz what `make fuzz` builds, by clang. Sources are found by folder: a new .c file in a room
# needs no change here.

BUILD ?= release
ifeq ($(BUILD),release)
B := build
else
B := build-$(BUILD)
endif

OBJCOPY := $(if $(filter aarch64,$(BUILD)),aarch64-linux-gnu-)objcopy
ifeq ($(origin CC),default)
CC := $(if $(filter fuzz clang,$(BUILD)),clang,$(if $(filter aarch64,$(BUILD)),aarch64-linux-gnu-)gcc)
endif
PREFIX ?= /usr/local
DESTDIR ?=

CUDA_INC := $(shell scripts/deps.sh --cuda-include)

WARN := -Wall -Wextra -Werror
# A sanitizer's report names functions and lines, which is the lesser part of debug information.
DEBUG_INFO := $(if $(filter asan tsan,$(BUILD)),-g1,-g)
BASE := -std=c11 -D_GNU_SOURCE $(WARN) -fvisibility=hidden -fPIC $(DEBUG_INFO) -I.
OPT_release := -O2 -DNDEBUG
OPT_aarch64 := $(OPT_release)
# Given away: what is in it must not depend on the folder in which it was built.
OPT_portable := $(OPT_release) -ffile-prefix-map=$(CURDIR)=.
OPT_clang := $(OPT_release)
OPT_debug := -O1 -DCA_DEBUG=1
OPT_asan := -O1 -DCA_DEBUG=1 -fno-omit-frame-pointer
OPT_tsan := $(OPT_asan)
OPT_fuzz := -O2 -DCA_DEBUG=1 -fno-omit-frame-pointer
SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZE_tsan := -fsanitize=thread
SANITIZE_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
    -fsanitize-coverage-ignorelist=tests/fuzz/unwatched.txt
SANITIZE := $(SANITIZE_$(BUILD))
OPT = $(OPT_$(BUILD)) $(SANITIZE)
ifeq ($(OPT_$(BUILD)),)
$(error BUILD=$(BUILD): accepted are release, debug, asan, tsan, portable, clang, fuzz, aarch64)
endif
ALL_CFLAGS = $(BASE) $(OPT) $(CFLAGS) -MMD -MP

# --- the product ----------------------------------------------------------------------------------
# Only shim/ sees the CUDA headers: the other rooms must build without them.
sources = $(sort $(wildcard $(1)/*.$(2) $(1)/*/*.$(2)))
CORE_SRC := $(foreach room,base config registry pool,$(call sources,$(room),c))
SHIM_SRC := $(call sources,shim,c)
SHIM_ASM := $(call sources,shim,S)
CORE_OBJ := $(CORE_SRC:%.c=$B/obj/%.o)
SHIM_OBJ := $(SHIM_SRC:%.c=$B/obj/%.o) $(SHIM_ASM:%.S=$B/obj/%.o)

# The asan build borrows the simulator of the release build, and would write into that.
all: lib $(if $(filter asan,$(BUILD)),,simcuda)

lib: $B/libcachealloc.so

# nodelete: exit handlers and ends of threads lead into it, after a dlclose too.
$B/libcachealloc.so: $(CORE_OBJ) $(SHIM_OBJ) $B/exports.map
	$(CC) $(OPT) -shared -o $@ $(CORE_OBJ) $(SHIM_OBJ) -Wl,--version-script=$B/exports.map \
	    -Wl,-soname,libcachealloc.so -Wl,-Bsymbolic -Wl,-z,relro,-z,now,-z,nodelete $(SO_UNDEF) \
	    -ldl -lpthread $(LDFLAGS)
ifneq ($(filter portable aarch64,$(BUILD)),)
	@scripts/check_glibc.sh $@ 2.28 || { rm -f $@; exit 1; }
endif

# A sanitizer's run-time stays undefined in a shared object: the host program brings it.
ifneq ($(filter release debug portable clang aarch64,$(BUILD)),)
SO_UNDEF := -Wl,--no-undefined
endif

# Where libc has all that these had they are empty, and an older one needs them named.
ifneq ($(filter portable aarch64,$(BUILD)),)
$(CORE_OBJ) $(SHIM_OBJ) $B/obj/tests/%.o $B/obj/simcuda/%.o $B/obj/scripts/%.o: \
    ALL_CFLAGS += -include base/old_glibc.h
OLD_LIBC := -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
SO_UNDEF += $(OLD_LIBC)
endif

# The export map comes from the hook table, so that the two cannot drift.
$B/exports.map: shim/hooks/exports.map.in shim/hooks/hooks.def shim/hooks/submissions.def include/cachealloc.h | $B
	$(CC) $(OPT) -E -P -I. -x c shim/hooks/exports.map.in -o $@

$B/obj/shim/%.o: ALL_CFLAGS += -ftls-model=initial-exec -isystem $(CUDA_INC)
$(CORE_OBJ): ALL_CFLAGS += -ftls-model=initial-exec
# Its loop compares the words of each stack that is captured: a thirtieth less.
$B/obj/registry/stack/stack_cache.o: ALL_CFLAGS += -falign-loops=32
# More loads every argument of a launch into a register that has to be saved: a third more. Nobody
# times the builds that look for faults, and its hundreds of wrappers take long to optimise.
$B/obj/shim/cuda/submissions.o: ALL_CFLAGS += $(if $(filter debug asan tsan,$(BUILD)),-O0,-O1)
# Runs while a sanitizer's own run-time is being initialised: it must not need one.
$B/obj/shim/hooks/dlsym_hook.o $B/obj/shim/cuda/real_dlsym.o: SANITIZE :=
$B/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@
$B/obj/%.o: %.S
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

# What release tests take from the debug build, each behind a link: the shim with its assertions and
# deliberate faults, and the rules of reuse in order and of ranges. One make builds all of it, since
# two would write the same objects at once.
UNIT_DEBUG := $(patsubst %,$B/tests/unit/test_%-debug,home order range view)
OF_DEBUG := $(if $(filter release portable,$(BUILD)),of-debug)
of-debug: FORCE
	@$(MAKE) -s --no-print-directory BUILD=debug lib \
	    $(patsubst $B/%-debug,build-debug/%,$(UNIT_DEBUG)) build-debug/callgraphs/callgraphs build-debug/pyframes/frames.so
$B/libcachealloc-debug.so: $(OF_DEBUG) FORCE
	@mkdir -p $(@D)
	ln -sfn $(if $(OF_DEBUG),../build-debug/)libcachealloc.so $@
$B/tests/unit/test_%-debug: $(OF_DEBUG) FORCE
	@mkdir -p $(@D)
	ln -sfn $(if $(OF_DEBUG),../../../build-debug/tests/unit/)test_$* $@
FORCE:

# --- the simulated CUDA ---------------------------------------------------------------------------
SIM := $B/simcuda
SIM_DRV_OBJ := $(patsubst %.c,$B/obj/%.o,$(wildcard simcuda/driver/*.c))
SIM_RT_OBJ := $(patsubst %.c,$B/obj/%.o,$(wildcard simcuda/runtime/*.c))

simcuda: $(SIM)/libcuda.so.1 $(SIM)/libcudart.so.13

$B/obj/simcuda/%.o: ALL_CFLAGS += -isystem $(CUDA_INC)
# Run under an emulator, where nobody times it.
ifeq ($(BUILD),aarch64)
$(SIM_DRV_OBJ) $(SIM_RT_OBJ): OPT += -O0
endif

$(SIM)/libcuda.so.1: $(SIM_DRV_OBJ)
	@mkdir -p $(@D)
	$(CC) $(OPT) -shared -o $@ $^ -Wl,-soname,libcuda.so.1 $(SO_UNDEF) -lpthread -ldl -lm
	ln -sf libcuda.so.1 $(SIM)/libcuda.so

$(SIM)/libcudart.so.13: $(SIM_RT_OBJ) simcuda/runtime/libcudart.map
	@mkdir -p $(@D)
	$(CC) $(OPT) -shared -o $@ $(SIM_RT_OBJ) -Wl,-soname,libcudart.so.13 \
	    -Wl,--version-script=simcuda/runtime/libcudart.map $(SO_UNDEF) -lpthread -ldl
	ln -sf libcudart.so.13 $(SIM)/libcudart.so

-include simcuda/simcuda.mk simcuda/runtime.mk
include scripts/check.mk

$B:
	@mkdir -p $B

-include $(shell find $B -name '*.d' 2>/dev/null)

.PHONY: all lib simcuda
