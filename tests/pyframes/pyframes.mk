# $B/pyframes/frames.so: captures of the stacks of a Python program, by the objects of base, config and
# registry; checks.py opens it. debug.so is the same with the deliberate faults of base/mutation.h.
PYFRAMES := $B/pyframes
$(PYFRAMES)/frames.so: $B/obj/tests/pyframes/frames.o $(filter-out $B/obj/pool/%,$(CORE_OBJ))
	@mkdir -p $(@D)
	$(CC) $(OPT) -shared -o $@ $^ -Wl,-Bsymbolic $(OLD_LIBC) -ldl -lpthread -lm $(LDFLAGS)
$(PYFRAMES)/unknown: LINK = -rdynamic
$(PYFRAMES)/embedded $(PYFRAMES)/unknown: $(PYFRAMES)/%: $B/obj/tests/pyframes/%.o
	@mkdir -p $(@D)
	$(CC) $(OPT) -o $@ $^ $(LINK) $(OLD_LIBC) -ldl -lpthread $(LDFLAGS)
$(PYFRAMES)/deep.so: tests/pyframes/deep.cc | simcuda $(CUDA_INC)/cuda.h
	@mkdir -p $(@D)
	$(CXX) $(patsubst -std=c11,-std=c++17,$(BASE)) -O2 -fno-optimize-sibling-calls -shared \
	    -isystem $(CUDA_INC) -o $@ $< -L$(SIM) -lcudart $(LDFLAGS)
$(PYFRAMES)/debug.so: $(OF_DEBUG) FORCE
	@mkdir -p $(@D)
	ln -sfn ../../build-debug/pyframes/frames.so $@

# Not under a sanitizer: the interpreters have none.
ifneq ($(filter release debug,$(BUILD)),)
TEST_TOOLS += $(addprefix $(PYFRAMES)/,frames.so embedded unknown deep.so) \
    $(if $(filter release,$(BUILD)),$(PYFRAMES)/debug.so)
endif
