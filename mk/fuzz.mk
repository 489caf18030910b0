# Fuzz targets, as regression tests and under libFuzzer (included by the Makefile).
.PHONY: fuzz fuzz-targets fuzzers fuzz-bundle

fuzz-targets: $(FUZZ)

# A fuzz target twice: with a plain main that replays files (regression), and with libFuzzer (make fuzz).
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/replay.o $(TRAIN) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LINK) -Wl,--as-needed $(TRAIN_LIBS) $(LIBS)

# The targets under libFuzzer: everything but the C library is linked statically, so that they run on other machines too.
FUZZ_SECONDS ?= 30
FUZZ_JOBS ?= 1
FUZZER := $(BUILD)/libfuzzer
.SECONDARY: $(call obj,$(FUZZ_SRC))
fuzzers:
	@$(MAKE) --no-print-directory BUILD=$(FUZZER) CC=clang SAN=fuzzer-no-link,address,undefined \
	    $(patsubst tests/fuzz/%.c,$(FUZZER)/%,$(FUZZ_SRC))
$(BUILD)/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(TRAIN) $(STATIC)
	$(call say,LD,$@)clang++ -fsanitize=fuzzer,address,undefined -static-libstdc++ -static-libgcc -o $@ $^ -pthread -Wl,--as-needed $(TRAIN_LIBS) $(LIBS)
fuzz: fuzzers
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_JOBS=$(FUZZ_JOBS) sh tests/fuzz/run.sh $(FUZZER) $(FILTER)
fuzz-bundle: fuzzers
	@sh tests/fuzz/bundle.sh $(FUZZER) $(BUILD)/ravel-fuzz.tar.gz
