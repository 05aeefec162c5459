# The simulated runtime's other faces, from the same sources: libcudart.so.12, which differs in its
# version, in the version node of its symbols and in the functions whose form CUDA 13 changed, and a
# static archive whose symbols are hidden, as the real one's are. Programs for the former link with
# -L$(SIM)/12 -lcudart.
SIM_RT12_CHANGED := graph graph_build memory_query properties
SIM_RT12_OBJ := $(filter-out $(foreach f,version $(SIM_RT12_CHANGED),%/$f.o),$(SIM_RT_OBJ)) \
    $(patsubst %,$B/obj/simcuda/runtime12/%.o,forms version $(SIM_RT12_CHANGED))
SIM_RT_STATIC_OBJ := $(SIM_RT_OBJ:$B/obj/simcuda/runtime/%=$B/obj/simcuda/static/%)

# No test asks for them where another architecture or races are looked at (check.mk: FEW).
ifeq ($(filter aarch64 tsan-check,$(BUILD) $(BUILD)-$(TIER)),)
simcuda: $(SIM)/libcudart.so.12 $(SIM)/libcudart_static.a
endif

$B/obj/simcuda/runtime12/version.o: simcuda/runtime/version.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DRT_PLAYS=12090 -c $< -o $@

$(SIM_RT12_CHANGED:%=$B/obj/simcuda/runtime12/%.o): $B/obj/simcuda/runtime12/%.o: \
    $B/obj/simcuda/runtime/%.o simcuda/runtime12/renamed.txt
	@mkdir -p $(@D)
	$(OBJCOPY) --redefine-syms=simcuda/runtime12/renamed.txt $< $@

# Nobody times it.
$(SIM_RT_STATIC_OBJ): OPT += -O0
$B/obj/simcuda/static/%.o: simcuda/runtime/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DRT_STATIC -c $< -o $@

$(SIM)/libcudart_12.map: simcuda/runtime/libcudart.map
	@mkdir -p $(@D)
	sed 's/^libcudart[.]so[.]13 /libcudart.so.12 /' $< >$@

$(SIM)/libcudart.so.12: $(SIM_RT12_OBJ) $(SIM)/libcudart_12.map
	@mkdir -p $(SIM)/12
	$(CC) $(OPT) -shared -o $@ $(SIM_RT12_OBJ) -Wl,-soname,libcudart.so.12 \
	    -Wl,--version-script=$(SIM)/libcudart_12.map $(SO_UNDEF) -lpthread -ldl
	ln -sf ../libcudart.so.12 $(SIM)/12/libcudart.so

$(SIM)/libcudart_static.a: $(SIM_RT_STATIC_OBJ)
	@mkdir -p $(@D)
	rm -f $@
	$(AR) rcs $@ $^

# The simulated runtime's self test: runtime API only, so that it runs on real hardware as well.
$B/tests/simcuda/selftest_runtime: simcuda/selftest_runtime.c $(SIM)/libcudart.so.13
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(ALL_CFLAGS)) -isystem $(CUDA_INC) -o $@ $< \
	    -L$(SIM) -lcudart -lpthread

simcuda-selftest-runtime: $B/tests/simcuda/selftest_runtime $(SIM)/libcuda.so.1
	BUILD_DIR=$B scripts/with-simcuda $<
	SIMCUDA=runtime:11 BUILD_DIR=$B scripts/with-simcuda $<

# So that `make check` builds what tests/test_simcuda.py runs.
TEST_TOOLS += $B/tests/simcuda/selftest_runtime

.PHONY: simcuda-selftest-runtime
