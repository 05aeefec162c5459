# The simulated CUDA's own self test: driver API only, one process per test.
SIM_SELFTEST := $(addprefix tests/simcuda/selftest,.c _memory.c _streams.c _driver.c)
$B/tests/simcuda/selftest: $(SIM_SELFTEST) tests/simcuda/selftest.h tests/simcuda/selftest.def \
    $(SIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(ALL_CFLAGS)) -UNDEBUG -isystem $(CUDA_INC) -o $@ \
	    $(SIM_SELFTEST) \
	    -L$(SIM) -lcuda -lpthread -ldl

simcuda-selftest: $B/tests/simcuda/selftest
	BUILD_DIR=$B scripts/with-simcuda $<

.PHONY: simcuda-selftest
