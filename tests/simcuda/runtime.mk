# The simulated runtime's self test: runtime API only, so that it runs on real hardware as well.
$B/tests/simcuda/selftest_runtime: tests/simcuda/selftest_runtime.c $(SIM)/libcudart.so.13
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(ALL_CFLAGS)) -isystem $(CUDA_INC) -o $@ $< \
	    -L$(SIM) -lcudart -lpthread

simcuda-selftest-runtime: $B/tests/simcuda/selftest_runtime $(SIM)/libcuda.so.1
	BUILD_DIR=$B scripts/with-simcuda $<
	SIMCUDA=runtime:11 BUILD_DIR=$B scripts/with-simcuda $<

# So that `make check` builds what tests/test_simcuda.py runs.
tests: $B/tests/simcuda/selftest_runtime

.PHONY: simcuda-selftest-runtime
