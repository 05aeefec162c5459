# The leaking programs (test_leak_corpus.py): tests/leaks/*.c and *.cc, with the runtime; drv_* with
# the driver too; *_library is a shared object. A program whose head has a line `builds: ...` is
# there as NAME.BUILD too, made in each of those ways. A jump to a function's last callee leaves no
# frame, so such calls stay calls, but in the build `tail`.
LEAKS := $B/tests/leaks
LEAK_SRC := $(wildcard tests/leaks/*.c tests/leaks/*.cc)
leak_obj = $(patsubst %,$B/obj/tests/leaks/%.o,$(1))
LEAK_OBJ := $(call leak_obj,$(basename $(notdir $(LEAK_SRC))))
LEAK_LIBRARIES := $(patsubst $B/obj/tests/leaks/%.o,$(LEAKS)/lib%.so,\
    $(filter %_library.o,$(LEAK_OBJ)))
LEAK_PROGRAMS := $(patsubst $B/obj/%.o,$B/%,$(filter-out %_library.o,$(LEAK_OBJ)))

$(LEAK_PROGRAMS): $B/%: $B/obj/%.o
$(LEAK_LIBRARIES): $(LEAKS)/lib%.so: $(call leak_obj,%)
$(LEAK_OBJ): ALL_CFLAGS += -fno-optimize-sibling-calls
$(LEAK_OBJ): | $(CUDA_INC)/cuda.h

$(LEAK_PROGRAMS) $(LEAK_LIBRARIES): LINK = -L$(SIM) -lcudart
$(filter $(LEAKS)/drv_%,$(LEAK_PROGRAMS)): LINK += -lcuda
$(LEAK_LIBRARIES): LINK += -shared
$(patsubst tests/leaks/%.cc,$(LEAKS)/%,$(filter %.cc,$(LEAK_SRC))): LINKER = $(CXX)
$(LEAKS)/libcxx_library.so: LINKER = $(CXX)
$(LEAK_PROGRAMS) $(LEAK_LIBRARIES): | simcuda
PROGRAMS += $(LEAK_PROGRAMS) $(LEAK_LIBRARIES)

# The same wrapper of cudaMalloc in an archive, in a library, and in one without names.
$(LEAKS)/static_wrapper: $(LEAKS)/libpool_library.a
$(LEAKS)/static_wrapper: LINK = $(LEAKS)/libpool_library.a -L$(SIM) -lcudart
$(LEAKS)/shared_wrapper: LINK = -L$(LEAKS) -lpool_library -L$(SIM) -lcudart -Wl,-rpath,'$$ORIGIN'
$(LEAKS)/shared_wrapper: | $(LEAKS)/libpool_library.so
$(LEAKS)/late_free: LINK = -L$(LEAKS) -llate_library -L$(SIM) -lcudart -Wl,-rpath,'$$ORIGIN'
$(LEAKS)/late_free: | $(LEAKS)/liblate_library.so
$(LEAKS)/libpool_library.a: $(call leak_obj,pool_library)
	@mkdir -p $(@D)
	$(AR) rcs $@ $^
$(LEAKS)/libpool_stripped.so: $(LEAKS)/libpool_library.so
	strip -o $@ $<
TEST_TOOLS += $(LEAKS)/libpool_stripped.so

# The other builds: flags that come after -O2, and what is linked. A sanitizer's are not looked at.
LEAK_O0 := -O0
LEAK_O3 := -O3
LEAK_no_fp := -fomit-frame-pointer
LEAK_g0 := -g0
LEAK_g1 := -g1
LEAK_split := -gsplit-dwarf
LEAK_dwarf4 := -gdwarf-4
LEAK_gz := -gz
LEAK_lto := -flto
LEAK_no_pie := -fno-pie -no-pie
LEAK_static_cxx := -static-libstdc++ -static-libgcc
LEAK_no_tables := -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-omit-frame-pointer
LEAK_tail := -foptimize-sibling-calls
ifneq ($(filter release debug,$(BUILD)),)
leak_builds = $(shell sed -n 's/^ \* builds: //p' $(1))
LEAK_BUILDS := $(foreach source,$(LEAK_SRC),\
    $(addprefix $(LEAKS)/$(basename $(notdir $(source))).,$(call leak_builds,$(source))))
LEAK_COMPILED := $(filter-out %.stripped %.debuglink,$(LEAK_BUILDS))
$(foreach one,$(LEAK_COMPILED),$(eval \
    $(one): $(wildcard tests/leaks/$(basename $(notdir $(one))).c*)))

leak_compiler = $(if $(filter %.cc,$^),$(CXX) $(patsubst -std=c11,-std=c++17,$(BASE)),$(CC) $(BASE))
leak_build = $(patsubst .%,%,$(suffix $@))
$(LEAK_COMPILED): tests/leaks/leak.h tests/preload/check.h \
    | simcuda $(CUDA_INC)/cuda.h
	@mkdir -p $(@D)
	$(leak_compiler) -O2 -fno-optimize-sibling-calls $(LEAK_$(leak_build)) -isystem $(CUDA_INC) \
	    -o $@ $(filter-out %.h,$^) -L$(SIM) \
	    $(if $(filter static_runtime,$(leak_build)),-lcudart_static -ldl -lpthread,-lcudart)
$(filter %.stripped,$(LEAK_BUILDS)): %.stripped: %
	strip -o $@ $<
$(filter %.debuglink,$(LEAK_BUILDS)): %.debuglink: %
	@mkdir -p $(@D)/.debug
	objcopy --only-keep-debug $< $(@D)/.debug/$(@F).debug
	objcopy --strip-all --add-gnu-debuglink=$(@D)/.debug/$(@F).debug $< $@
TEST_TOOLS += $(LEAK_BUILDS)
endif
