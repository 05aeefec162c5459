# The programs of the matrix (rows.py) that the C and C++ compilers make. What other tools make,
# rows.py makes itself, where they are there.
MATRIX := $B/tests/matrix
matrix_obj = $(patsubst %,$B/obj/tests/matrix/%.o,$(1))
MATRIX_OBJ := $(call matrix_obj,linked driver module opener early early_library throws)

MATRIX_13 := $(addprefix $(MATRIX)/,shared opener_13 module_13.so libearly.so early throws)
MATRIX_12 := $(addprefix $(MATRIX)/,shared_12 module_12.so)
MATRIX_STATIC := $(addprefix $(MATRIX)/,static module_static.so)
MATRIX_PROGRAMS := $(MATRIX_13) $(MATRIX_12) $(MATRIX_STATIC) $(MATRIX)/driver $(MATRIX)/opener

$(addprefix $(MATRIX)/,shared shared_12 static): $(call matrix_obj,linked)
$(addprefix $(MATRIX)/,module_13.so module_12.so module_static.so): $(call matrix_obj,module)
$(addprefix $(MATRIX)/,opener opener_13): $(call matrix_obj,opener)
$(MATRIX)/driver: $(call matrix_obj,driver)
$(MATRIX)/libearly.so: $(call matrix_obj,early_library)
$(MATRIX)/early: $(call matrix_obj,early) | $(MATRIX)/libearly.so
$(MATRIX)/throws: $(call matrix_obj,throws) | $(MATRIX)/libearly.so

# opener_13 names the runtime, though nothing in it needs it: it is there from the start.
$(MATRIX_13): LINK = -L$(SIM) -Wl,--no-as-needed -lcudart
$(MATRIX_12): LINK = -L$(SIM)/12 -lcudart
$(MATRIX_STATIC): LINK = -L$(SIM) -lcudart_static
$(MATRIX)/driver: LINK = -L$(SIM) -lcuda
$(MATRIX)/early $(MATRIX)/throws: LINK += -L$(MATRIX) -learly
$(filter %.so,$(MATRIX_PROGRAMS)): LINK += -shared
$(MATRIX)/early $(MATRIX)/throws: LINKER = $(CXX)

# Hosts with a sanitizer of their own; a shim that has one too is another test.
ifneq ($(filter release debug,$(BUILD)),)
MATRIX_HOSTS := $(addprefix $(MATRIX)/host_,address address_static undefined thread)
$(MATRIX)/host_address_static: SANITIZER := address -static-libasan
$(MATRIX)/host_%: tests/matrix/linked.c tests/matrix/work.h tests/matrix/pattern.h | simcuda
	@mkdir -p $(@D)
	$(CC) $(BASE) -O1 -isystem $(CUDA_INC) -fsanitize=$(or $(SANITIZER),$*) -o $@ $< -L$(SIM) -lcudart
endif

$(MATRIX_PROGRAMS): | simcuda
$(MATRIX_OBJ) $(MATRIX_HOSTS): | $(CUDA_INC)/cuda.h
PROGRAMS += $(MATRIX_PROGRAMS)

TEST_TOOLS += $(MATRIX_HOSTS)
