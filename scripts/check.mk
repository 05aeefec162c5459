# Included by the Makefile: test programs, `make check`, `make demo`, installing. New ones are found
# by folder and name:
#
#   tests/unit/test_*.c          $B/tests/unit/test_*    with the objects of config, registry and pool
#   tests/unit/*.c               (the others)            linked into each of those
#   tests/preload/*.c *.cc       $B/tests/preload/*      -lcudart
#   tests/preload/drv_*.c        $B/tests/preload/drv_*  -lcuda
#   tests/preload/both_*.c       $B/tests/preload/both_* -lcudart -lcuda
#   tests/preload/plugin_*.c     $B/tests/preload/plugin_*.so
#   tests/preload/*_host.c       $B/tests/preload/*_host, a program that links no CUDA library
#   tests/parity/*.c             $B/tests/parity/*       -lcudart -lcuda
#   tests/demo/*.c               $B/demo/*               -lcudart
#   tests/gpu/*.c                $B/facts                one program, -lcudart -lcuda
#   tests/gpu/programs/*.cu      $B/programs/*           by nvcc, where there is one
#   tests/replay/*.c             $B/replay               one program, -lcudart -lz
#   tests/random/*.c             $B/random               one program, -lcudart -lcuda
#   tests/soak/*.c               $B/soak                 one program, -lcudart -lcuda
#   tests/rows/*.c               $B/tests/rows/*         no library
#   tests/matrix/matrix.mk       $B/tests/matrix/*       each as it says
#   tests/leaks/leaks.mk         $B/tests/leaks/*        -lcudart, and as it says
#   tests/bench/bench.mk         $B/bench/*              each as it says
#   tests/callgraphs/*.mk        $B/callgraphs/*         each as it says
#   tests/pyframes/*.mk          $B/pyframes/*           each as it says
#   tests/fuzz/fuzz_*.c          build-fuzz/fuzz/*       with those objects, by clang
#   tests/**/test_*.py           run by pytest, as are the unit programs

JOBS ?= $(shell nproc)
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
LIBEXECDIR ?= $(PREFIX)/libexec/cachealloc
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR ?= $(PREFIX)/share/doc/cachealloc
# What is for users; the rest is for who has the tree.
PAGES := README.md SECURITY.md LICENSE
DOCS := $(wildcard docs/*.md)
MANDIR ?= $(PREFIX)/share/man
MODULEDIR ?= $(PREFIX)/share/modulefiles
# One file for every version of Python, so not below one's own; PYTHONDIR=... puts it there.
OWN_PYTHONDIR := $(LIBDIR)/cachealloc
PYTHONDIR ?= $(OWN_PYTHONDIR)

# --- objects --------------------------------------------------------------------------------------
# Tests assert in every flavour. Unit tests get no CUDA header: it proves that the rooms they test
# need none.
CUDA_TESTS := preload parity gpu replay random soak demo matrix leaks
$B/obj/tests/%.o: ALL_CFLAGS += -UNDEBUG
$(CUDA_TESTS:%=$B/obj/tests/%/%.o): ALL_CFLAGS += -isystem $(CUDA_INC)

$B/obj/%.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(patsubst -std=c11,-std=c++17,$(ALL_CFLAGS)) $(CXXFLAGS) -c $< -o $@

test_objects = $(patsubst %,$B/obj/%.o,$(basename $(wildcard $(1))))

UNIT_OBJ := $(call test_objects,tests/unit/test_*.c)
UNIT_HELPER_OBJ := $(filter-out $(UNIT_OBJ),$(call test_objects,tests/unit/*.c))
PRELOAD_OBJ := $(call test_objects,tests/preload/*.c tests/preload/*.cc)
PARITY_OBJ := $(call test_objects,tests/parity/*.c)
FACTS_OBJ := $(call test_objects,tests/gpu/*.c)
REPLAY_OBJ := $(call test_objects,tests/replay/*.c)
RANDOM_OBJ := $(call test_objects,tests/random/*.c)
ROWS_OBJ := $(call test_objects,tests/rows/*.c)
SOAK_OBJ := $(call test_objects,tests/soak/*.c)
DEMO_OBJ := $(call test_objects,tests/demo/*.c)

# In the release build these drive what is tested, and their own speed is not looked at, but for
# those that `make bench-gpu` times: compiled without optimisation, with less where a unit program
# has a model of a pool, or asks for long. The sanitizers' builds compile all of them with it, so no
# warning that needs it is lost.
TIMED := mix threads graphs pitched versioned
LONG := failures fences ordered pool_random pool_threads registry sample view
ifeq ($(BUILD),release)
$(filter-out $(TIMED:%=$B/obj/tests/preload/%.o),$(PRELOAD_OBJ)) $(PARITY_OBJ): OPT += -O0
LONG_OBJ := $(LONG:%=$B/obj/tests/unit/test_%.o) $(UNIT_HELPER_OBJ)
$(LONG_OBJ): OPT += -O1
$(filter-out $(LONG_OBJ),$(UNIT_OBJ)): OPT += -O0
endif

# Where there is no toolkit, the headers have to be brought first.
$(SHIM_OBJ) $(SIM_DRV_OBJ) $(SIM_RT_OBJ) $(SIM_RT12_OBJ) $(SIM_RT_STATIC_OBJ) $(PRELOAD_OBJ) $(PARITY_OBJ) $(FACTS_OBJ) $(REPLAY_OBJ) \
    $(RANDOM_OBJ) $(SOAK_OBJ) $(DEMO_OBJ): | $(CUDA_INC)/cuda.h
$(CUDA_INC)/cuda.h:
	scripts/deps.sh --headers

# --- programs -------------------------------------------------------------------------------------
UNIT := $(UNIT_OBJ:$B/obj/%.o=$B/%)
# Which run with deliberate faults.
ROWS := $(ROWS_OBJ:$B/obj/%.o=$B/%)
PARITY := $(PARITY_OBJ:$B/obj/%.o=$B/%)
PRELOAD := $(PRELOAD_OBJ:$B/obj/%.o=$B/%)
HOST := $(filter %_host,$(PRELOAD))
PLUGIN := $(patsubst %,%.so,$(filter-out $(HOST),$(filter $B/tests/preload/plugin_%,$(PRELOAD))))
DRIVER := $(filter-out $(HOST),$(filter $B/tests/preload/drv_%,$(PRELOAD)))
RUNTIME := $(filter-out $(HOST) $(DRIVER) $(PLUGIN:%.so=%),$(PRELOAD))
FACTS := $(if $(FACTS_OBJ),$B/facts)
REPLAY := $(if $(REPLAY_OBJ),$B/replay)
RANDOM := $(if $(RANDOM_OBJ),$B/random)
SOAK := $(if $(SOAK_OBJ),$B/soak)
DEMO := $(DEMO_OBJ:$B/obj/tests/%.o=$B/%)
PROBE := $B/cuda_probe
OPTION_TABLE := $B/option_table

# No rpath: the same program runs on the simulator and on a real CUDA, by LD_LIBRARY_PATH.
$(UNIT): LINK = -lcmocka
$(RUNTIME) $(PLUGIN) $(DEMO): LINK = -L$(SIM) -lcudart
# Whoever preloads it must not see a runtime by it.
$B/tests/preload/plugin_wraps.so $B/tests/preload/plugin_dlsym.so: LINK =
$(DRIVER): LINK = -L$(SIM) -lcuda
$(filter $B/tests/preload/both_%,$(RUNTIME)) $(PARITY) $(FACTS) $(RANDOM) $(SOAK): \
    LINK = -L$(SIM) -lcudart -lcuda
# Found without LD_LIBRARY_PATH too, which it sets for the processes that it starts.
$(REPLAY): LINK = -L$(SIM) -lcudart -lz -Wl,-rpath,'$$ORIGIN/simcuda'
$(PLUGIN): LINK += -shared

$(RUNTIME) $(PLUGIN) $(DEMO) $(DRIVER) $(PARITY) $(FACTS) $(REPLAY) $(RANDOM) $(SOAK): | simcuda

$(UNIT): $B/%: $B/obj/%.o $(UNIT_HELPER_OBJ) $(CORE_OBJ)
$(HOST) $(RUNTIME) $(DRIVER) $(PARITY) $(ROWS): $B/%: $B/obj/%.o
$(PLUGIN): $B/%.so: $B/obj/%.o
$(DEMO): $B/%: $B/obj/tests/%.o
$(FACTS): $(FACTS_OBJ)
$(REPLAY): $(REPLAY_OBJ)
$(RANDOM): $(RANDOM_OBJ)
$(SOAK): $(SOAK_OBJ)
$(PROBE) $(OPTION_TABLE): $B/%: $B/obj/scripts/%.o
$(OPTION_TABLE): $(filter $B/obj/base/% $B/obj/config/%,$(CORE_OBJ))

CXX_PROGRAMS := $(patsubst %.cc,$B/%,$(wildcard tests/preload/*.cc))
$(CXX_PROGRAMS): LINKER = $(CXX)
LINKER = $(CC)

PROGRAMS := $(UNIT) $(HOST) $(RUNTIME) $(DRIVER) $(PARITY) $(PLUGIN) $(DEMO) $(FACTS) $(REPLAY) \
    $(RANDOM) $(SOAK) $(ROWS) $(OPTION_TABLE)
include tests/matrix/matrix.mk
include tests/gpu/programs/programs.mk
include tests/leaks/leaks.mk
include tests/bench/bench.mk
include tests/callgraphs/callgraphs.mk
include tests/pyframes/pyframes.mk
include tests/fuzz/fuzz.mk

$(PROGRAMS) $(PROBE) $(BENCH) $B/callgraphs/callgraphs:
	@mkdir -p $(@D)
	$(LINKER) $(OPT) -o $@ $(filter %.o,$^) $(LINK) $(OLD_LIBC) -ldl -lpthread -lm $(LDFLAGS)

# Of `make check BUILD=tsan`: the modules that conftest.SANITIZED names run nothing else. Whatever K
# or T names may.
ifeq ($(BUILD)-$(TIER),tsan-check)
RACED := $(filter-out $(patsubst %,$B/tests/unit/%,$(shell cat tests/unit/not_raced.txt)),$(UNIT))
FEW := $(RACED) $(HOST) $(RUNTIME) $(DRIVER) $(PLUGIN) $(RANDOM) $(ROWS) $(OPTION_TABLE)
endif

# What is built in $B alone, so that it may go on beside another make.
own-tests: lib $(or $(RACED),$(UNIT)) $(OPTION_TABLE) $B/libcachealloc-debug.so $(UNIT_DEBUG) $B/cachealloc.7
tests: own-tests
ifneq ($(BUILD),asan)
own-tests: all $(or $(FEW),$(PROGRAMS) $(PROBE) $(TEST_TOOLS))
else
# What it finds is in code that it compiled, and that is ours alone: the simulator and the programs
# are those of the release build.
BORROWED := simcuda demo bench random soak replay facts cuda_probe \
    $(addprefix tests/,preload parity rows matrix leaks simcuda)
tests: borrowed
borrowed: FORCE
	@$(MAKE) -s --no-print-directory BUILD=release CFLAGS= LDFLAGS= tests
	@mkdir -p $B/tests
	@for one in $(BORROWED); do \
	    [ -L $B/$$one ] || rm -rf "$B/$$one"; ln -sfn "$(CURDIR)/build/$$one" $B/$$one; done
endif

# What tests/test_aarch64.py runs under an emulator, where there is a compiler for it: with lines and
# no variables, since no debugger is there.
CROSS_CC := $(if $(filter release,$(BUILD)),$(shell command -v aarch64-linux-gnu-gcc))
CROSS_PROGRAMS := versioned threads life_children plugin_host plugin_alloc.so plugin_next.so next_dlsym \
    lookups_host drv_procaddr drv_mix unknown_host
aarch64: | $(CUDA_INC)/cuda.h
	@$(MAKE) -s --no-print-directory BUILD=aarch64 CC=$(CROSS_CC) DEBUG_INFO=-g1 CFLAGS= LDFLAGS= all \
	    $(CROSS_PROGRAMS:%=build-aarch64/tests/preload/%)

# What tests marked other_build look at, which `make check` leaves out. Nothing else writes what is
# built here, and no other test looks at it; programs of build/ are linked behind it.
other-builds other-programs:
ifeq ($(BUILD),release)
other-builds: portable $(if $(CROSS_CC),aarch64) $(if $(shell command -v clang),clang)
endif
# A glibc that moved more than is known of fails one test, not all.
portable: | $(CUDA_INC)/cuda.h
	-@$(MAKE) -s --no-print-directory BUILD=portable CFLAGS= LDFLAGS= lib build-portable/cachealloc.7
# Whatever clang this machine has: that it builds is a test's to say.
clang: | $(CUDA_INC)/cuda.h
	-@$(MAKE) -s --no-print-directory BUILD=clang CC=clang CFLAGS= LDFLAGS= lib

# --- running --------------------------------------------------------------------------------------
# What is missing is brought first and make started anew, because the second make sees it. V=1 shows
# the commands.
AGAIN = +@echo "building in $B/" && \
    $(MAKE) $(if $(V),,-s) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))
# A test that waits for something leaves a core to the next one. With four on two cores a quarter
# was idle.
WORKERS := $(shell expr $(JOBS) \* 5 / 2)
TEST_TIMEOUT := $(if $(filter asan tsan,$(BUILD)),900,300)

# Which tests run is tests/conftest.py's to say (TIERS); what is named by K or T runs in each variant.
TIER := $(if $(K)$(T),night,check)
check-full check-more check-night: TIER = $(@:check-%=%)

check: ## each test once, in its default variant (K=NAME: those so named, T=FILE::TEST: that one)
check-full: ## each variant of every test, the others at their default
check-more: ## what check-full runs and check does not
check-night: ## the cross product of all variants
check check-full check-more check-night:
	@scripts/deps.sh
	@scripts/d3.sh || echo "check: without D3, so without the tests of the report page"
	@echo "$@: $(call takes,$(TIER)$(BUILD:release=)); here are $$(nproc)"
	$(AGAIN) run-check TIER=$(TIER)

# Of a clean clone on two cores, packages installed; what is not here was not measured.
takes = $(if $(TAKES_$(1)),takes some $(TAKES_$(1)) minutes on two cores,not measured)
TAKES_check := 5
TAKES_more := 5
TAKES_full := 10
TAKES_checkasan := 5
TAKES_checktsan := 5

# gcc's thread sanitizer cannot live with much address randomisation.
ifeq ($(BUILD),tsan)
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
endif

run-check: tests $(if $(filter check,$(TIER)),,other-builds other-programs)
	@BUILD_DIR=$B CA_TIER=$(TIER) $(FIXED_ADDRESSES) $$(scripts/deps.sh --python) -B -m pytest \
	    $(if $(T),'$(T)',tests) $(if $(T),-p no:xdist,-n $(WORKERS)) \
	    --timeout=$(TEST_TIMEOUT) $(if $(K),-k '$(K)') $(PYTEST_FLAGS)

# DISTROS=bookworm picks one, K=NAME tests, KEEP=1 keeps what was made.
check-distros: ## README's commands in fresh roots of Debian 12 and 13, by debootstrap; as root
	@scripts/check_distros.sh build-distros

check-launchers: ## ranks under each launcher (PYTHON=one with torch), examples of pages; as root
	@scripts/deps.sh --launchers
	$(AGAIN) run-check-launchers

run-check-launchers: all $B/tests/preload/published $B/tests/preload/leaks $B/tests/preload/at_limit
	@CA_LAUNCHERS=required CA_TORCH_PYTHON='$(PYTHON)' BUILD_DIR=$B CA_TIER=night \
	    $$(scripts/deps.sh --python) -B -m pytest tests/test_launchers.py \
	    tests/test_examples.py $(PYTEST_FLAGS)

matrix: ## every kind of process, one line each (K=NAME: only those)
	@scripts/deps.sh
	$(AGAIN) run-matrix

run-matrix: tests
	@BUILD_DIR=$B $(FIXED_ADDRESSES) scripts/run_matrix.sh $(K)

soak run-soak: SECONDS ?= 600
soak: ## for SECONDS=600: one program of many rounds, then random ones, also on segments that grow
	@scripts/deps.sh --build
	$(AGAIN) run-soak

# Each has a third of the time. SOAK_FLAGS="--first 1000 --no-racecheck": other random programs, faster.
run-soak: THIRD = $(shell expr $(SECONDS) / 3 + 1)
run-soak: all $(RANDOM) $(SOAK) $B/libcachealloc-debug.so
	@$(FIXED_ADDRESSES) python3 -B tests/soak/run.py --build $B --seconds $(THIRD)
	@$(FIXED_ADDRESSES) python3 -B tests/random/soak.py --build $B --seconds $(THIRD) $(SOAK_FLAGS)
	@$(FIXED_ADDRESSES) python3 -B tests/random/soak.py --build $B --seconds $(THIRD) --expandable \
	    $(SOAK_FLAGS)

replay: ## replay traces (TRACES=DIR, otherwise made ones) beside PyTorch's policy
	@scripts/deps.sh --build
	$(AGAIN) run-replay

# REPLAY_FLAGS="--busy --least": see tests/replay/replay.c.
run-replay: all $(REPLAY)
	@$(if $(TRACES),,python3 -B tests/replay/generate.py $B/traces &&) \
	    $B/replay --table $(REPLAY_FLAGS) $(or $(TRACES),$B/traces)

demo: ## build and run the example, on a GPU where there is one, otherwise simulated
	@scripts/deps.sh --build
	$(AGAIN) run-demo

run-demo: all $(DEMO) $(PROBE)
	@scripts/demo.sh $B

page: ## the example's leak report as a page, build/demo.html, and its picture
	@scripts/deps.sh --build
	@scripts/d3.sh
	$(AGAIN) run-page

run-page: all $(DEMO) $(PROBE)
	@scripts/demo_page.sh $B

facts: ## ask the GPU (or the simulator) the questions of tests/gpu
	@scripts/deps.sh --build
	$(AGAIN) run-facts

# FACTS_ARGS="--fact free_waits" asks one.
run-facts: simcuda $(FACTS) $(PROBE)
	@cuda=$$(scripts/pick_cuda.sh $B) || exit 1; \
	case $$cuda in \
	*/$(SIM)) label="simulated CUDA (simcuda), not hardware"; \
	    shared=$$(mktemp); SIMCUDA=$${SIMCUDA:-shared:$$shared}; export SIMCUDA ;; \
	*) label="hardware"; shared= ;; \
	esac; \
	trap 'rm -f "$$shared"' EXIT; \
	LD_LIBRARY_PATH=$$cuda$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} \
	    $B/facts --label "$$label" $(FACTS_ARGS) >$B/facts.json || exit; \
	$$(scripts/deps.sh --python || echo python3) scripts/facts_page.py $B/facts.json \
	    >$B/facts.md || exit; \
	echo "facts: answered by: $$label; in $B/facts.json and $B/facts.md"

# What tests/gpu/check.py and measure.py run. They end with 77 where there is no GPU, which make
# calls an error; SIMULATED=1 runs them on the simulator.
GPU_MATRIX := $(MATRIX_13) $(MATRIX)/driver $(MATRIX)/opener
GPU_PROGRAMS = all $B/libcachealloc-debug.so $(FACTS) $(RANDOM) $(REPLAY) $(PROBE) $(HOST) $(RUNTIME) $(DRIVER) $(PLUGIN) \
    $(PARITY) $(BENCH) $(GPU_MATRIX) $(CU_STATIC) $(CU_SHARED)

check-gpu: ## the shim on this machine's GPU: facts, programs, error codes (SIMULATED=1: simulated)
	@scripts/deps.sh --build
	$(AGAIN) run-check-gpu

bench-gpu: ## what allocating costs on this machine's GPU, in tables (SIMULATED=1: simulated)
	@scripts/deps.sh --build
	$(AGAIN) run-bench-gpu

# GPU_FLAGS="--steps parity": see tests/gpu/suite.py.
run-check-gpu: $(GPU_PROGRAMS)
	@python3 -B tests/gpu/check.py --build $B $(GPU_FLAGS)

run-bench-gpu: $(GPU_PROGRAMS)
	@python3 -B tests/gpu/measure.py --build $B $(GPU_FLAGS)

KIT := $B/gpu-kit
gpu-kit: $(GPU_PROGRAMS) ## what the two need of a build, for a machine with a GPU and no make
	@rm -rf $(KIT)
	@mkdir -p $(KIT)/simcuda $(KIT)/tests/preload $(KIT)/tests/parity $(KIT)/tests/matrix $(KIT)/bench \
	    $(KIT)/programs/shared
	cp -L $B/libcachealloc.so $B/libcachealloc-debug.so $(FACTS) $(RANDOM) $(REPLAY) $(PROBE) $(KIT)
	cp $(SIM)/libcuda.so.1 $(SIM)/libcudart.so.13 $(KIT)/simcuda
	cp $(HOST) $(RUNTIME) $(DRIVER) $(PLUGIN) $(KIT)/tests/preload
	cp $(PARITY) $(KIT)/tests/parity
	cp $(GPU_MATRIX) $(KIT)/tests/matrix
	cp $(BENCH) $(KIT)/bench
	$(if $(strip $(CU_STATIC)),cp $(CU_STATIC) $(KIT)/programs)
	$(if $(CU_SHARED),cp $(CU_SHARED) $(KIT)/programs/shared)
	$(if $(CUDART),mkdir -p $(KIT)/cudart && cp -L $(CUDART) $(KIT)/cudart)
	cd $(KIT) && find libcachealloc-debug.so facts random replay cuda_probe simcuda tests bench programs -type f \
	    -exec $(shell $(CC) -print-prog-name=strip) -g {} +
	@$(if $(CU_SHARED),true,echo "gpu-kit: no nvcc beside $(CUDA_INC): without CUDA C programs")
	git describe --always --dirty --abbrev=12 >$(KIT)/commit || rm -f $(KIT)/commit
	@echo "gpu-kit: python3 tests/gpu/check.py --build $(KIT)"

bench: ## measure against other allocators, tables and a chart (BENCH_FLAGS: see bench.py)
	@scripts/deps.sh --bench
	@scripts/peers.sh || echo "bench: without RMM"
	$(AGAIN) run-bench

bench-short: ## the main cases of bench, in a minute
	@scripts/deps.sh --bench
	@scripts/peers.sh || echo "bench: without RMM"
	$(AGAIN) run-bench BENCH_FLAGS="--short $(BENCH_FLAGS)"

run-bench: all $(BENCH) $(filter $(PYFRAMES)/frames.so,$(TEST_TOOLS))
	@$$(scripts/deps.sh --bench-python) -B tests/bench/bench.py --build $B $(BENCH_FLAGS)

bench-replay: ## memory held for traces (TRACES=DIR, otherwise made ones), busy and idle, in a table
	@scripts/deps.sh --build
	$(AGAIN) run-bench-replay

run-bench-replay: all $(REPLAY)
	@$(if $(TRACES),,python3 -B tests/replay/generate.py $B/traces &&) \
	    python3 -B tests/bench/replays.py --build $B $(BENCH_FLAGS) $(or $(TRACES),$B/traces)

bench-fit: ## the smallest device that programs and traces (TRACES=DIR, otherwise made ones) fit
	@scripts/deps.sh --build
	$(AGAIN) run-bench-fit

# BENCH_FLAGS="--conf expandable_segments:true": a column more; see tests/bench/fits.py.
run-bench-fit: all $(REPLAY) $B/bench/fit
	@$(if $(TRACES),,python3 -B tests/replay/generate.py $B/traces &&) \
	    python3 -B tests/bench/fits.py --build $B $(BENCH_FLAGS) $(or $(TRACES),$B/traces)

bench-torch: ## a training step of PyTorch with and without the library (PYTHON=one that has torch)
	@scripts/deps.sh --build
	$(AGAIN) run-bench-torch

# TORCH_SCRIPT=FILE: another one than tests/bench/torch_train.py, which says what it must print.
run-bench-torch: all $(filter $(BENCH_PYTHON),$(TEST_TOOLS))
	@python3 -B tests/bench/torch_steps.py --build $B $(if $(PYTHON),--python '$(PYTHON)') \
	    $(if $(TORCH_SCRIPT),--script '$(TORCH_SCRIPT)') $(BENCH_FLAGS)

# VENVS="2.15 2.9 others": only these.
torch-venv: ## what check-torch runs: PyTorch 2.15 and 2.9 (4.3 GB, ten minutes each) and other packages
	@scripts/torch_venv.sh $(VENVS)

# TORCH="DIR...", PYTHON_CUDA=DIR: other environments than those of torch-venv. K=NAME: those tests.
COMPLETE = $(patsubst %/complete,%,$(wildcard build/$(1)/complete))
TORCH ?= $(call COMPLETE,torch-*)
PYTHON_CUDA ?= $(call COMPLETE,python-cuda)
check-torch: ## PyTorch and other packages on the simulated CUDA, with and without the library
	@scripts/deps.sh
	$(AGAIN) run-check-torch

run-check-torch: all $B/libcachealloc-debug.so
	@for one in $(TORCH) $(PYTHON_CUDA); do \
	    [ -x "$$one/bin/python" ] || { echo "check-torch: $$one has no bin/python: TORCH and PYTHON_CUDA" \
	        "name virtual environments (make torch-venv)" >&2; exit 1; }; done
	@if [ -z "$(strip $(TORCH)$(PYTHON_CUDA))" ]; then \
	    echo "check-torch: skipped: no PyTorch in build/torch-*, and TORCH= names none (make torch-venv)"; \
	else \
	    CA_TORCH="$(abspath $(TORCH))" CA_PYTHON_CUDA="$(abspath $(PYTHON_CUDA))" BUILD_DIR=$B \
	        $$(scripts/deps.sh --python) -B -m pytest tests/test_torch.py tests/test_plugin_torch.py \
	        -n $(JOBS) --timeout=900 $(if $(K),-k '$(K)') $(PYTEST_FLAGS); \
	fi

static: ## clang-format, cppcheck, clang-tidy, shellcheck, and cuda.h against our lists
	@scripts/deps.sh --static
	@CUDA_INC=$(CUDA_INC) TIDY=$(TIDY) scripts/check_static.sh

format: ## clang-format every file in place
	@FORMAT=-i scripts/check_static.sh clang-format

docs: $(OPTION_TABLE) ## write docs/options.md and the pictures anew, from config/options.def and docs/**.dot
	$B/option_table --update docs/options.md
	@scripts/draw_pictures.sh

deps: ## install what building and testing need, or print the command
	@scripts/deps.sh

# --- installing -----------------------------------------------------------------------------------
VERSION := $(shell sed -n 's/^\#define CACHEALLOC_VERSION "\(.*\)"/\1/p' include/cachealloc.h)

# For another architecture the table of this one.
MAN_TABLE := $(if $(filter aarch64,$(BUILD)),build/option_table,$(OPTION_TABLE))
ifeq ($(BUILD),aarch64)
$(MAN_TABLE): FORCE
	@$(MAKE) -s --no-print-directory BUILD=release CC=gcc CFLAGS= LDFLAGS= $@
endif
$B/cachealloc.7: docs/man/cachealloc.7.in $(MAN_TABLE) include/cachealloc.h
	$(MAN_TABLE) --man >$@.options
	sed -e 's/@VERSION@/$(VERSION)/' -e '/@OPTIONS@/{r $@.options' -e 'd;}' $< >$@

dist: ## the committed tree as $B/cachealloc-VERSION.tar.gz, the same bytes each time
	@mkdir -p $B
	git archive --format=tar --prefix=cachealloc-$(VERSION)/ HEAD >$B/cachealloc-$(VERSION).tar
	gzip -9nf $B/cachealloc-$(VERSION).tar

# BUILD=aarch64 makes the one for arm64.
DEB_BUILD := $(if $(filter release,$(BUILD)),portable,$(BUILD))
deb: | $(CUDA_INC)/cuda.h ## a Debian package of BUILD=portable, by dpkg-deb, the same bytes each time
	@$(MAKE) -s --no-print-directory BUILD=$(DEB_BUILD) CFLAGS= LDFLAGS= run-deb
run-deb: lib $B/cachealloc.7
	@STRIP=$(shell $(CC) -print-prog-name=strip) scripts/make_deb.sh $B

wheel: | $(CUDA_INC)/cuda.h ## a wheel for pip of BUILD=portable, by hatchling, the same bytes each time
	@scripts/deps.sh --wheel
	@$(MAKE) -s --no-print-directory BUILD=$(DEB_BUILD) CFLAGS= LDFLAGS= run-wheel
run-wheel: lib
	@STRIP=$(shell $(CC) -print-prog-name=strip) scripts/make_wheel.sh $B

# What tools/cachealloc starts.
TOOLS := cachealloc-convert cachealloc-journal cachealloc-report cachealloc-top merge_reports
TOOL_MODULES := top_screen.py
MODULES := $(notdir $(wildcard python/cachealloc/*.py))
PAGE_FILES := $(notdir $(wildcard tools/report_page/*.*))
CMAKE_FILES := cachealloc-config.cmake cachealloc-config-version.cmake
# What draws the report page, which is not ours: D3= installs without.
D3 ?= build/d3/d3.min.js
# What the files ask for, in @...@.
filled = sed $(foreach name,VERSION PREFIX LIBDIR BINDIR LIBEXECDIR INCLUDEDIR MANDIR PYTHONDIR,\
    -e 's|@$(name)@|$($(name))|')

build/d3/d3.min.js: FORCE
	@scripts/d3.sh || echo "without D3: 'cachealloc report' will ask for it"

install: lib $B/cachealloc.7 $(D3) ## install under PREFIX (/usr/local), below DESTDIR
	install -d "$(DESTDIR)$(LIBDIR)" "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(DOCDIR)/docs" \
	    "$(DESTDIR)$(PYTHONDIR)/cachealloc" "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(BINDIR)" \
	    "$(DESTDIR)$(LIBEXECDIR)/report_page" "$(DESTDIR)$(MANDIR)/man1" "$(DESTDIR)$(MANDIR)/man7" \
	    "$(DESTDIR)$(LIBDIR)/cmake/cachealloc" "$(DESTDIR)$(MODULEDIR)/cachealloc"
	install -m 755 $B/libcachealloc.so "$(DESTDIR)$(LIBDIR)/libcachealloc.so"
	install -m 644 include/cachealloc.h "$(DESTDIR)$(INCLUDEDIR)/cachealloc.h"
	install -m 644 $(MODULES:%=python/cachealloc/%) "$(DESTDIR)$(PYTHONDIR)/cachealloc"
	install -m 644 $(PAGES) "$(DESTDIR)$(DOCDIR)"
	install -m 644 $(DOCS) "$(DESTDIR)$(DOCDIR)/docs"
	install -m 644 $B/cachealloc.7 "$(DESTDIR)$(MANDIR)/man7/cachealloc.7"
	$(filled) docs/man/cachealloc.1.in >"$(DESTDIR)$(MANDIR)/man1/cachealloc.1"
	$(filled) tools/cachealloc >"$(DESTDIR)$(BINDIR)/cachealloc"
	chmod 755 "$(DESTDIR)$(BINDIR)/cachealloc"
	install -m 755 $(TOOLS:%=tools/%) "$(DESTDIR)$(LIBEXECDIR)"
	install -m 644 $(TOOL_MODULES:%=tools/%) "$(DESTDIR)$(LIBEXECDIR)"
	install -m 644 $(PAGE_FILES:%=tools/report_page/%) "$(DESTDIR)$(LIBEXECDIR)/report_page"
	$(filled) tools/report_page/version.py >"$(DESTDIR)$(LIBEXECDIR)/report_page/version.py"
	[ ! -e "$(D3)" ] || install -m 644 "$(D3)" "$(DESTDIR)$(LIBEXECDIR)/report_page/d3.min.js"
	[ ! -e "$(D3)" ] || install -m 644 packaging/LICENSE.d3 "$(DESTDIR)$(DOCDIR)"
	$(filled) python/cachealloc/_files.py >"$(DESTDIR)$(PYTHONDIR)/cachealloc/_files.py"
	$(filled) tools/cachealloc.pc.in >"$(DESTDIR)$(LIBDIR)/pkgconfig/cachealloc.pc"
	for file in $(CMAKE_FILES); do \
	    $(filled) packaging/cmake/$$file.in >"$(DESTDIR)$(LIBDIR)/cmake/cachealloc/$$file" || exit; done
	$(filled) packaging/modulefile.in >"$(DESTDIR)$(MODULEDIR)/cachealloc/$(VERSION)"
	chmod 644 "$(DESTDIR)$(LIBDIR)/pkgconfig/cachealloc.pc" "$(DESTDIR)$(MANDIR)/man1/cachealloc.1" \
	    $(CMAKE_FILES:%="$(DESTDIR)$(LIBDIR)/cmake/cachealloc/%") \
	    "$(DESTDIR)$(MODULEDIR)/cachealloc/$(VERSION)"
	@echo "the Python package is in $(PYTHONDIR): add that to PYTHONPATH, or install with PYTHONDIR=DIR"

uninstall: ## remove what install put there
	rm -f "$(DESTDIR)$(LIBDIR)/libcachealloc.so" "$(DESTDIR)$(INCLUDEDIR)/cachealloc.h" \
	    $(MODULES:%="$(DESTDIR)$(PYTHONDIR)/cachealloc/%") \
	    $(foreach m,$(MODULES:.py=),"$(DESTDIR)$(PYTHONDIR)/cachealloc/__pycache__/$m".*.pyc) \
	    $(PAGES:%="$(DESTDIR)$(DOCDIR)/%") $(DOCS:%="$(DESTDIR)$(DOCDIR)/%") \
	    "$(DESTDIR)$(MANDIR)/man7/cachealloc.7" "$(DESTDIR)$(LIBDIR)/pkgconfig/cachealloc.pc" \
	    "$(DESTDIR)$(MANDIR)/man1/cachealloc.1" "$(DESTDIR)$(BINDIR)/cachealloc"
	for file in $(TOOLS) $(TOOL_MODULES) $(PAGE_FILES:%=report_page/%) report_page/d3.min.js; do \
	    rm -f "$(DESTDIR)$(LIBEXECDIR)/$$file"; done
	rm -f "$(DESTDIR)$(DOCDIR)/LICENSE.d3" "$(DESTDIR)$(MODULEDIR)/cachealloc/$(VERSION)" \
	    $(CMAKE_FILES:%="$(DESTDIR)$(LIBDIR)/cmake/cachealloc/%")
	@for dir in "$(DESTDIR)$(PYTHONDIR)/cachealloc/__pycache__" \
	    "$(DESTDIR)$(PYTHONDIR)/cachealloc" "$(DESTDIR)$(OWN_PYTHONDIR)" \
	    "$(DESTDIR)$(LIBDIR)/cmake/cachealloc" "$(DESTDIR)$(MODULEDIR)/cachealloc" \
	    "$(DESTDIR)$(LIBEXECDIR)/report_page" "$(DESTDIR)$(LIBEXECDIR)"; do \
	    [ ! -d "$$dir" ] || rmdir --ignore-fail-on-non-empty "$$dir"; done
	@for dir in "$(DESTDIR)$(DOCDIR)/docs" "$(DESTDIR)$(DOCDIR)"; do \
	    [ ! -d "$$dir" ] || rmdir --ignore-fail-on-non-empty "$$dir"; done

clean: ## remove every build directory
	rm -rf build build-debug build-asan build-tsan build-portable build-clang build-fuzz build-aarch64 \
	    build-distros

help: ## this list
	@echo "make TARGET [BUILD=release|portable|clang|debug|asan|tsan] [PREFIX=$(PREFIX)] [DESTDIR=]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: tests own-tests other-builds other-programs portable clang aarch64 check check-full check-more check-night run-check check-distros check-launchers run-check-launchers matrix run-matrix soak run-soak replay run-replay demo run-demo page run-page facts run-facts check-gpu run-check-gpu bench-gpu run-bench-gpu gpu-kit bench bench-short run-bench bench-replay run-bench-replay bench-fit run-bench-fit bench-torch run-bench-torch torch-venv check-torch run-check-torch static format docs deps dist deb run-deb wheel run-wheel install uninstall clean help
