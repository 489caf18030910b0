# Ravel's build. `make help` lists the targets.
#
#   make BUILD=build/asan SAN=address,undefined all     another variant in a folder of its own
#   make CC=clang OPT=-O0 WERROR=1 ...
#
# Sources are found by folder, so a new .c file needs no line here. Optional parts are probed once into
# $(BUILD)/config.mk; `make reprobe` looks again.

BUILD   ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
OPT     ?= -O2
DEBUGINFO ?= -g
PREFIX  ?= /usr/local
DESTDIR ?=
SAN     ?=
WERROR  ?=
ASSERT  ?=

VERSION := $(shell sed -n 's/.*RAVEL_VERSION_STRING "\(.*\)".*/\1/p' include/ravel/base.h)
MAJOR   := $(firstword $(subst ., ,$(VERSION)))

WARN  := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wwrite-strings \
         -Wundef $(if $(WERROR),-Werror)
# -ffp-contract=off: no implicit fused multiply-add, so that every machine computes the same doubles.
FLAGS  = -std=c11 -D_GNU_SOURCE $(OPT) $(DEBUGINFO) -fPIC -fvisibility=hidden -ffp-contract=off -pthread $(WARN) \
         $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) \
         $(if $(SAN)$(ASSERT),-DRAVEL_ASSERT_ON) -Iinclude -MMD -MP $(CFLAGS)
LINK   = -pthread $(if $(SAN),-fsanitize=$(SAN)) $(LDFLAGS)
LIBS   = -lm -ldl

# Goals that build nothing need no probing.
ifneq ($(filter-out help clean lint format test test-frameworks test-peers test-fresh test-aarch64 wheel check demo demo-agent fuzz fuzzers fuzz-bundle seeds soak,$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/config.mk
endif

# ---- what is built from what -----------------------------------------------------------------------------------

MPI_SRC    := src/comm/mpi.c
CUDA_SRC   := $(wildcard src/device/cuda*.c src/device/cuda*.cu)
MODULE_SRC := $(MPI_SRC) src/comm/nccl.c src/comm/tls.c $(CUDA_SRC)
LIB_SRC    := $(filter-out $(MODULE_SRC),$(wildcard src/*/*.c src/*/*/*.c))
TRAIN_CUDA_SRC := $(wildcard train/kernels/cuda/*.c train/kernels/cuda/*.cu)
TRAIN_SRC  := $(filter-out $(TRAIN_CUDA_SRC),$(wildcard train/*/*.c train/*/*/*.c))
CLI_SRC    := $(wildcard cli/*.c cli/*/*.c)
UNIT_SRC   := $(wildcard tests/unit/*.c)
# UNIT_PREFIXES="comm feed": only the files with tests of these names, and the trainer only if its tests are among them.
ifneq ($(UNIT_PREFIXES),)
UNIT_HELPERS := $(filter-out tests/unit/test_% $(if $(filter train%,$(UNIT_PREFIXES)),,tests/unit/train_%),$(UNIT_SRC))
UNIT_SRC     := $(UNIT_HELPERS) $(shell grep -lE $(patsubst %,-e '^TEST.%',$(UNIT_PREFIXES)) tests/unit/test_*.c)
endif
BENCH_SRC  := $(wildcard bench/*.c)
FUZZ_SRC   := $(wildcard tests/fuzz/fuzz_*.c)
EXAMPLES   := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))

# One short line per command; V=1 shows the whole.
say = $(if $(V),,@printf "  %-3s %s\n" $(1) $(2) && )
obj = $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(patsubst %.c,$(BUILD)/obj/%.o,$(1)))

STATIC := $(BUILD)/libravel.a
SHARED := $(BUILD)/libravel.so
TRAIN  := $(if $(TRAIN_SRC),$(BUILD)/libraveltrain.a)
UNIT_TRAIN := $(if $(UNIT_PREFIXES),$(if $(filter train%,$(UNIT_PREFIXES)),$(TRAIN)),$(TRAIN))
RAVEL  := $(BUILD)/ravel
UNIT   := $(BUILD)/ravel-unit
BENCH  := $(BUILD)/ravel-bench
FUZZ   := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))

# One loadable module per MPI implementation: libravel itself links no MPI, and finds the right one when it is needed.
MODULES := $(if $(HAVE_TLS),$(BUILD)/libravel_tls.so) $(if $(HAVE_OPENMPI),$(BUILD)/libravel_openmpi.so) $(if $(HAVE_MPICH),$(BUILD)/libravel_mpich.so)
# Likewise for CUDA: the device floor, NCCL, and the trainer's kernel set. Without nvcc there is none of them, nor in builds
# with host sanitizers, which do not look at device code.
ifeq ($(if $(SAN),,$(HAVE_CUDA)),1)
MODULES += $(if $(CUDA_SRC),$(BUILD)/libravel_cuda.so)
MODULES += $(if $(HAVE_NCCL),$(if $(wildcard src/comm/nccl.c),$(BUILD)/libravel_nccl.so))
MODULES += $(if $(and $(HAVE_CUBLASLT),$(HAVE_CUDNN),$(TRAIN_CUDA_SRC)),$(BUILD)/libravel_train_cuda.so)
GPU_PROGRAMS := $(BUILD)/ravel-gpu $(BUILD)/ravel-bench-gpu # run on a GPU, compiled everywhere
endif
# Compute capabilities without the point, as mk/probe.sh lists them, and PTX of the first and of the newest for other GPUs (that of
# an "a" runs nowhere else). CUDA_GPUS=native: those of this machine's GPUs.
CUDA_CODE ?= $(if $(filter native,$(CUDA_GPUS)),-arch=native,$(foreach gpu,$(CUDA_GPUS),-gencode arch=compute_$(gpu),code=sm_$(gpu)) \
             $(foreach gpu,$(sort $(firstword $(filter-out %a,$(CUDA_GPUS))) $(lastword $(filter-out %a,$(CUDA_GPUS)))),-gencode arch=compute_$(gpu),code=compute_$(gpu)))
TRAIN_LIBS := $(if $(HAVE_OPENBLAS),-lopenblas)
TRAIN_DEFS := $(if $(HAVE_OPENBLAS),-DRAVEL_HAVE_OPENBLAS)

.PHONY: all lib help static deb demo demo-agent demo-real bench wheel man lint format install clean reprobe examples unit
.DEFAULT_GOAL := all

all: $(STATIC) $(SHARED) $(MODULES) $(RAVEL) examples
lib: $(STATIC) $(SHARED) $(MODULES)
unit: $(UNIT) $(MODULES) $(GPU_PROGRAMS)
all lib unit: $(if $(NO_CUDA),without-cuda)
examples: $(EXAMPLES)

help:
	@echo "make            build libravel (static and shared), the ravel command and the examples into $(BUILD)/"
	@echo "make demo       the main job on mock data, start to finish (installs what is missing)"
	@echo "make check      what to run between edits: unit tests, ladder, headers, command, lint of what changed"
	@echo "make demo-agent  a model learns to guess numbers in an environment of eight turns (two minutes)"
	@echo "make demo-real  SmolLM2 from a pip wheel: fine-tuning and GRPO, with figures and answers before and after (15 minutes)"
	@echo "make test       every test (installs what is missing); SUITES=unit,cli for some of them"
	@echo "make test-frameworks  the Python tests beside torch, transformers, trl, ...: installs gigabytes under $(BUILD)/"
	@echo "make test-peers CHECKOUTS=FOLDER  the adapters beside checkouts of the frameworks, and what is newer there than what was tested"
	@echo "make test-fresh  demo and test on fresh Debian 12, 13 and Ubuntu 24.04, as root and as a user; SYSTEM=debian13 for one"
	@echo "make test-aarch64  a cross build for aarch64 and unit tests under qemu, those of kernels and packing; WHOLE=1 for all"
	@echo "make wheel      an sdist and a manylinux_2_28 wheel, tried in fresh environments, under $(BUILD)/wheel/dist; MACHINE=aarch64 for that machine"
	@echo "make bench      the table of measurements, also as $(BUILD)/bench.json; FILTER=plan for some of it"
	@echo "make test-gpu   the tests that need a GPU; FILTER=gpu_batch for some, SANITIZER=compute-sanitizer to check them"
	@echo "make check-gpu  all of it in one call of LIMIT (480) seconds: the tests, and compute-sanitizer over our own kernels"
	@echo "make bench-gpu  the measurements that need a GPU, also as $(BUILD)/bench-gpu.json"
	@echo "make seeds      the random unit tests with SEEDS (50) seeds; FILTER=plan for some"
	@echo "make soak       make seeds, then the long versions of the random tests and suites; FILTER=plan for some"
	@echo "make lint       clang-format, clang-tidy, cppcheck; DEEP=1 with the analyzer's full depth"
	@echo "make man        the options in docs/man, from the option tables"
	@echo "make format     let clang-format rewrite the sources"
	@echo "make fuzz       run each fuzz target for FUZZ_SECONDS (30), FUZZ_JOBS (1) at a time; FILTER=fuzz_json for some"
	@echo "make fuzz-bundle  the fuzz targets and their corpora as one archive for another x86-64 machine"
	@echo "make install    into PREFIX ($(PREFIX)), with headers, man pages, completion for shells and a pkg-config file"
	@echo "make static     the command as one file without GPU parts, for any Linux of this machine's kind: $(BUILD)/ravel-static"
	@echo "make deb        Debian packages: libravel$(MAJOR), libravel-dev, ravel, python3-ravel, under $(BUILD)/deb"
	@echo "make clean      remove $(BUILD)/"
	@echo "variables       CC, OPT, CFLAGS, LDFLAGS, SAN=address,undefined, ASSERT=1, WERROR=1, NO_CUDA=1, BUILD=folder"

# ---- rules -----------------------------------------------------------------------------------------------------

$(BUILD)/config.mk: mk/probe.sh
	@mkdir -p $(BUILD)
	@sh mk/probe.sh "$(CC)" $@
reprobe:
	@rm -f $(BUILD)/config.mk
	@$(MAKE) --no-print-directory $(BUILD)/config.mk

$(BUILD)/obj/src/%.o: src/%.c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) -Isrc -c $< -o $@
$(BUILD)/obj/src/report/page.o: src/report/page.html
$(BUILD)/obj/cli/embed.o: cli/report/report.html cli/report/report_live.js $(wildcard cli/completion/ravel.*) cli/plan/plan_page.css
$(call obj,train/kernels/cpu/blas.c bench/bench_train.c tests/unit/test_train_kernels.c): $(BUILD)/config.mk # OpenBLAS or not
$(BUILD)/obj/train/%.o: train/%.c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) $(TRAIN_DEFS) -Isrc -I. -c $< -o $@
# The tests themselves need no speed: the library under test is optimised as asked, and with sanitizers a test file compiles
# in a third of the time without optimisation. Except where a test fills and compares large arrays.
TEST_OPT = $(if $(SAN),-O0,-O1)
$(call obj,$(addprefix tests/unit/,comm_try.c test_comm_link.c refit_case.c)): TEST_OPT = -O2
$(BUILD)/obj/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) $(TEST_OPT) $(TRAIN_DEFS) -Isrc -I. -Wno-missing-prototypes -c $< -o $@
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) $(TRAIN_DEFS) -Isrc -I. -c $< -o $@

$(STATIC): $(call obj,$(LIB_SRC))
	@rm -f $@
	$(call say,AR,$@)$(AR) rcs $@ $^
$(BUILD)/libraveltrain.a: $(call obj,$(TRAIN_SRC))
	@rm -f $@
	$(call say,AR,$@)$(AR) rcs $@ $^
$(SHARED): $(call obj,$(LIB_SRC))
	$(call say,LD,$@)$(CC) -shared -Wl,-soname,libravel.so.$(MAJOR) -o $@ $^ $(LINK) $(LIBS)
	@ln -sf libravel.so $(BUILD)/libravel.so.$(MAJOR)
$(BUILD)/obj/src/text/regex_pcre2.o: CFLAGS += $(if $(HAVE_PCRE2),-DRAVEL_HAVE_PCRE2)
$(BUILD)/obj/src/text/regex_pcre2.o: $(BUILD)/config.mk # PCRE2 or not
# A module hands libravel a table of functions and needs nothing of it, so it links only its own library.
MPI_NEEDS := $(MPI_SRC) src/comm/wire.h
$(BUILD)/libravel_tls.so: $(call obj,src/comm/tls.c)
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(LINK) -lssl -lcrypto
$(BUILD)/libravel_openmpi.so: $(MPI_NEEDS)
	$(call say,CC,$@)$(CC) $(filter-out -MMD -MP,$(FLAGS)) -Isrc -shared -o $@ $(MPI_SRC) $(OPENMPI_FLAGS) $(LINK)
$(BUILD)/libravel_mpich.so: $(MPI_NEEDS)
	$(call say,CC,$@)$(CC) $(filter-out -MMD -MP,$(FLAGS)) -Isrc -shared -o $@ $(MPI_SRC) $(MPICH_FLAGS) $(LINK)

# Loops that take most of the time. With sanitizers -O3 costs more in the compiler than it saves in the tests, and -O2 pays where
# tests multiply matrices and draw numbers; all else is compiled there with -Og, in three fifths of the time of -O1.
$(BUILD)/obj/src/comm/reduce.o $(BUILD)/obj/src/batch/writer.o $(BUILD)/obj/src/plan/%.o: CFLAGS += $(if $(SAN),,-O3)
$(BUILD)/obj/train/kernels/%.o $(BUILD)/obj/src/base/rng.o: CFLAGS += $(if $(SAN),-O2)
# Where an installed libravel looks for modules.
$(BUILD)/obj/src/base/system/module.o: CFLAGS += -DRAVEL_LIBDIR='"$(PREFIX)/lib"'

# The modules find the library's functions in the program that loads them, so the programs below hold all of it, used or not.
whole = $(filter %.o,$^) -Wl,--whole-archive $(filter %.a,$^) -Wl,--no-whole-archive
$(RAVEL): $(call obj,$(CLI_SRC)) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $(whole) $(LINK) $(TRAIN_LIBS) $(LIBS) -rdynamic
# The command as one file that needs no other: no modules (MPI, TLS, CUDA, NCCL), PCRE2 inside, no OpenBLAS. What differs is compiled again.
ALONE_SRC := src/text/regex_pcre2.c src/base/system/module.c train/kernels/cpu/blas.c
$(BUILD)/obj/alone/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) -DRAVEL_ALONE $(if $(HAVE_PCRE2),-DRAVEL_HAVE_PCRE2) -Isrc -I. -c $< -o $@
$(BUILD)/ravel-static: $(call obj,$(CLI_SRC)) $(patsubst %.c,$(BUILD)/obj/alone/%.o,$(ALONE_SRC)) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -static -s -o $@ $^ $(LINK) $(if $(HAVE_PCRE2),-lpcre2-8) -lm 2>$@.log || { cat $@.log; exit 1; }
$(BUILD)/examples/%: examples/%.c $(STATIC)
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(FLAGS) -o $@ $< $(STATIC) $(LINK) $(LIBS)

include mk/cuda.mk mk/test.mk mk/fuzz.mk

# ---- targets ----------------------------------------------------------------------------------------------------

# The demo runs on the CPU: without a GPU it does not wait for kernels of six kinds of GPUs.
demo:
	@sh mk/deps.sh demo $(BUILD)
	@$(MAKE) --no-print-directory $(if $(shell nvidia-smi -L 2>/dev/null),,HAVE_CUDA=) all
	@sh mk/demo.sh $(BUILD)

static: $(BUILD)/ravel-static
deb: all
	@MAKE="$(MAKE)" sh mk/deb.sh $(BUILD) $(VERSION)

demo-agent:
	@sh mk/deps.sh demo $(BUILD)
	@$(MAKE) --no-print-directory $(if $(shell nvidia-smi -L 2>/dev/null),,HAVE_CUDA=) all
	@sh mk/demo-agent.sh $(BUILD)

demo-real:
	@sh mk/deps.sh demo $(BUILD)
	@$(MAKE) --no-print-directory all
	@sh mk/demo-real.sh $(BUILD)

wheel:
	@MACHINE=$(MACHINE) sh mk/wheel.sh $(BUILD)
$(BENCH): $(call obj,$(BENCH_SRC)) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LINK) $(TRAIN_LIBS) $(LIBS) -rdynamic
bench: $(BENCH) all
	@BUILD=$(BUILD) $(BENCH) --json $(BUILD)/bench.json $(if $(FILTER),--filter "$(FILTER)")

man: $(RAVEL)
	@sh mk/man.sh $(BUILD)
lint:
	@DEEP=$(DEEP) sh mk/lint.sh $(BUILD)
format:
	@git ls-files '*.c' '*.h' '*.cu' | xargs clang-format -i

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/ravel \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install $(RAVEL) $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(STATIC) $(DESTDIR)$(PREFIX)/lib/
	install $(SHARED) $(DESTDIR)$(PREFIX)/lib/libravel.so.$(VERSION)
	ln -sf libravel.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libravel.so.$(MAJOR)
	ln -sf libravel.so.$(MAJOR) $(DESTDIR)$(PREFIX)/lib/libravel.so
	$(if $(strip $(MODULES)),install $(MODULES) $(DESTDIR)$(PREFIX)/lib/)
	install -m 644 include/ravel/*.h $(DESTDIR)$(PREFIX)/include/ravel/
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	$(RAVEL) completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/ravel
	$(RAVEL) completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ravel
	$(RAVEL) completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ravel.fish
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' mk/ravel.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/ravel.pc

clean:
	rm -rf $(BUILD)

# Dependency files of all objects; there is no list of sources to maintain.
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
