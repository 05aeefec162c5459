# $B/callgraphs/callgraphs: random call graphs in which captures are held against full unwindings, by
# the objects of config and registry; forms.c once for each way to make a frame. debug is the same
# with the deliberate faults of base/mutation.h. The modules are told apart by what an unwinder
# must know of them alone.
GRAPHS := $B/callgraphs
GRAPHS_FLAGS_plain := -O2 -fomit-frame-pointer
GRAPHS_FLAGS_framed := -O2 -fno-omit-frame-pointer
GRAPHS_FLAGS_small := -Os -fomit-frame-pointer
GRAPHS_FORMS := $(patsubst %,$B/obj/tests/callgraphs/forms_%.o,plain framed small)
GRAPHS_OBJ := $(patsubst %,$B/obj/tests/callgraphs/%.o,callgraphs coroutines libraries signals throws)
GRAPHS_MODULES := $(GRAPHS)/module_one.so $(GRAPHS)/module_two.so

$(GRAPHS_FORMS): $B/obj/tests/callgraphs/forms_%.o: tests/callgraphs/forms.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(GRAPHS_FLAGS_$*) -DFORMS_NAME=forms_$* -c $< -o $@
$(GRAPHS_OBJ): ALL_CFLAGS += -O2
$(GRAPHS)/callgraphs: LINKER = $(CXX)
$(GRAPHS)/callgraphs: $(GRAPHS_OBJ) $(GRAPHS_FORMS) $(filter-out $B/obj/pool/%,$(CORE_OBJ))
# So that the frames of a stack that is wrong have names.
$(GRAPHS)/callgraphs: LINK = -rdynamic
$(GRAPHS)/module_one.so: ROOM := 300
$(GRAPHS)/module_two.so: ROOM := 700
$(GRAPHS_MODULES): tests/callgraphs/module.c tests/callgraphs/callgraphs.h
	@mkdir -p $(@D)
	$(CC) $(BASE) -O2 -DROOM=$(ROOM) -shared -o $@ $<
$(GRAPHS)/debug: $(OF_DEBUG) FORCE
	@mkdir -p $(@D)
	ln -sfn ../../build-debug/callgraphs/callgraphs $@

# Not under a sanitizer: its run-time has frames and signal stacks of its own.
ifneq ($(filter release debug,$(BUILD)),)
TEST_TOOLS += $(GRAPHS)/callgraphs $(GRAPHS_MODULES) $(if $(filter release,$(BUILD)),$(GRAPHS)/debug)
endif
