# $B/fuzz/NAME from fuzz_NAME.c, with pages.c and the objects of config, registry and pool: programs
# of libFuzzer's, which comes with clang. Built in build-fuzz alone, by `make fuzz`.
FUZZ := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

ifeq ($(BUILD),fuzz)
FUZZ_PROGRAMS := $(FUZZ:%=$B/fuzz/%)
$B/fuzz/trace: $B/obj/tests/replay/trace.o
$B/fuzz/trace: LINK = -lz
$(FUZZ_PROGRAMS): $B/fuzz/%: $B/obj/tests/fuzz/fuzz_%.o $B/obj/tests/fuzz/pages.o $(CORE_OBJ)
	@mkdir -p $(@D)
	$(CC) $(OPT) -fsanitize=fuzzer -Wl,--wrap=mmap,--wrap=munmap -o $@ $(filter %.o,$^) $(LINK) \
	    -ldl -lpthread -lm
fuzz-programs: $(FUZZ_PROGRAMS)
endif

fuzz: SECONDS ?= 60
fuzz: ## fuzz each target of tests/fuzz for SECONDS=60 (FUZZ=NAME: only that; RUNS=N: so many)
	@scripts/deps.sh --fuzz
	+@echo "building in build-fuzz/" && $(MAKE) -s --no-print-directory BUILD=fuzz \
	    $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS)) fuzz-programs
	@$$(scripts/deps.sh --python) -B tests/fuzz/run.py build-fuzz $(SECONDS) $(RUNS:%=--runs %) $(FUZZ)

.PHONY: fuzz fuzz-programs
