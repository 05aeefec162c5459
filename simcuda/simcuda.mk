# Older drivers, each in a folder of its own: what is newer is not among the symbols, so that dlsym
# does not find it. SIMCUDA=driver:N has to be said too.
SIM_OLD_DRIVERS := $(foreach v,11020 11040,$(SIM)/driver-$v/libcuda.so.1)

simcuda: $(SIM_OLD_DRIVERS)

.PRECIOUS: $(SIM)/driver-%.map

$(SIM)/driver-%.map: simcuda/driver/api.def
	@mkdir -p $(@D)
	awk -F '[(), ]+' '/^SIM_FN/ && $$4 > $* { names = names $$2 "; " } \
	    END { print "{ local: " names "};" }' $< >$@

$(SIM)/driver-%/libcuda.so.1: $(SIM_DRV_OBJ) $(SIM)/driver-%.map
	@mkdir -p $(@D)
	$(CC) $(OPT) -shared -o $@ $(SIM_DRV_OBJ) -Wl,-soname,libcuda.so.1 \
	    -Wl,--version-script=$(SIM)/driver-$*.map $(SO_UNDEF) -lpthread -ldl -lm

# What PyTorch asks of it before its expandable segments map anything.
$(SIM)/libnvidia-ml.so.1: $B/obj/simcuda/nvml.o $(SIM)/libcuda.so.1
	$(CC) $(OPT) -shared -o $@ $< -Wl,-soname,libnvidia-ml.so.1 $(SO_UNDEF) -L$(SIM) -lcuda

simcuda: $(SIM)/libnvidia-ml.so.1

# The simulated CUDA's own self tests: driver API only, one process per test. tests/test_simcuda.py
# runs them.
SIM_SELFTEST := $(addprefix simcuda/selftest,.c _memory.c _streams.c _driver.c _green.c _shared.c _ipc.c _graph.c _graph_build.c \
    _places.c _running.c _values.c _vmm.c)
SIM_SELFTEST_H := $(wildcard simcuda/*.h simcuda/*.def)
SIM_SELFTESTS := $(addprefix $B/tests/simcuda/,selftest selftest_race selftest_shadow)

$B/tests/simcuda/selftest: $(SIM_SELFTEST)
$B/tests/simcuda/selftest_race: $(addprefix simcuda/selftest,_race.c _dead.c _race_graph.c _race_deferred.c \
    _race_memory.c _race_vmm.c)
$B/tests/simcuda/selftest_shadow: simcuda/selftest_shadow.c simcuda/driver/shadow.c
# They drive what is tested, and are compiled without optimisation, as the programs of tests/preload.
ifeq ($(BUILD),release)
$(SIM_SELFTESTS): OPT += -O0
endif
$(SIM_SELFTESTS): $(SIM_SELFTEST_H) $(SIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(ALL_CFLAGS)) -UNDEBUG -isystem $(CUDA_INC) -o $@ \
	    $(filter %.c,$^) -L$(SIM) -lcuda -lpthread -ldl

simcuda-selftest: $(SIM_SELFTESTS)
	for t in $(SIM_SELFTESTS); do BUILD_DIR=$B scripts/with-simcuda $$t || exit; done

# So that `make check` builds what tests/test_simcuda.py runs.
TEST_TOOLS += $(SIM_SELFTESTS)

.PHONY: simcuda-selftest
