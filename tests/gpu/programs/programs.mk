# CUDA C programs that check themselves, for tests/gpu/check.py and measure.py, where nvcc lies beside
# the headers: $B/programs/NAME with nvcc's default, the static runtime, and $B/programs/shared/NAME
# with the shared one, which alone the simulator can take the place of. Code for sm_80 and sm_90, PTX
# for what is newer. Beside them, with the toolkit's static runtime, what of the matrix is linked so.
TOOLKIT := $(patsubst %/include,%,$(CUDA_INC))
ifneq ($(filter release debug portable clang,$(BUILD)),)
NVCC := $(wildcard $(TOOLKIT)/bin/nvcc)
CUDART_STATIC := $(wildcard $(TOOLKIT)/lib64/libcudart_static.a)
endif
# For the kit, where its machine has none. A comment behind the value would make a space part of it.
CUDART := $(wildcard $(TOOLKIT)/lib64/libcudart.so.13)
NVCC_FLAGS := -std=c++17 -O2 -Xcompiler=-Wall,-Wextra -Xfatbin=-compress-all \
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
CU_NAMES := $(patsubst tests/gpu/programs/%.cu,%,$(wildcard tests/gpu/programs/*.cu))
CU_STATIC := $(if $(NVCC),$(CU_NAMES:%=$B/programs/%)) \
    $(if $(CUDART_STATIC),$(addprefix $B/programs/,linked_static module_static.so))
CU_SHARED := $(if $(NVCC),$(CU_NAMES:%=$B/programs/shared/%))

.PRECIOUS: $B/obj/tests/gpu/programs/%.o
$B/obj/tests/gpu/programs/%.o: tests/gpu/programs/%.cu tests/gpu/programs/program.cuh
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -c -o $@ $<
$(CU_NAMES:%=$B/programs/%): $B/programs/%: $B/obj/tests/gpu/programs/%.o
	@mkdir -p $(@D)
	$(NVCC) -cudart static -o $@ $<
$(CU_SHARED): $B/programs/shared/%: $B/obj/tests/gpu/programs/%.o
	@mkdir -p $(@D)
	$(NVCC) -cudart shared -o $@ $<

$B/programs/linked_static: $(call matrix_obj,linked)
$B/programs/module_static.so: $(call matrix_obj,module)
$B/programs/module_static.so: SHARED := -shared
$B/programs/linked_static $B/programs/module_static.so: | $(CUDA_INC)/cuda.h
	@mkdir -p $(@D)
	$(CC) $(OPT) $(SHARED) -o $@ $^ $(CUDART_STATIC) -lrt -ldl -lpthread $(LDFLAGS)

# What the tests run of them, all of it or nothing. Other builds take it for `make gpu-kit` alone.
ifeq ($(BUILD),release)
other-builds: $(if $(NVCC),$(CU_NAMES:%=$B/obj/tests/gpu/programs/%.o))
other-programs: $(CU_STATIC) $(CU_SHARED)
endif
