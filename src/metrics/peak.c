/* Dense bf16 peaks of GPUs, from the makers' data sheets (halved where those count sparsity).
 *
 * A name is taken apart into words ("NVIDIA A100-SXM4-80GB": NVIDIA A100 SXM4 80GB). A row matches when all its words
 * are there and every other word is one that changes nothing about the peak: a maker, a memory size, a form factor
 * that has no row of its own. "RTX 4090 Laptop GPU" or "A100 MIG 1g.5gb" leave a word over, and match nothing.
 * MI250 cards are two devices each under one name, so they have no row. */
#include <ravel/flops.h>

#include "base/assert.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *name;
    double teraflops;
} gpus[] = {
    {"A100", 312},      {"A800", 312},       {"A10", 125},          {"A10G", 70},
    {"A30", 165},       {"A40", 149.7},      {"RTX A6000", 154.8},  {"L4", 121},
    {"L20", 119.5},     {"L40", 181.05},     {"L40S", 362.05},      {"RTX 6000 Ada Generation", 364.2},
    {"H100", 989.4},    {"H100 PCIe", 756},  {"H100 NVL", 835.5},   {"H800", 989.4},
    {"H800 PCIe", 756}, {"H20", 148},        {"H200", 989.4},       {"H200 NVL", 835.5},
    {"GH200", 989.4},   {"B100", 1750},      {"B200", 2250},        {"GB200", 2500},
    {"RTX 3090", 71},   {"RTX 4090", 165.2}, {"RTX 4090 D", 147.1}, {"RTX 5090", 209.5},
    {"MI300A", 980.6},  {"MI300X", 1307.4},  {"MI325X", 1307.4},    {"MI350X", 2306.9},
    {"MI355X", 2516.6},
};
enum { GPUS = sizeof gpus / sizeof *gpus, WORDS = 12, LONGEST = 24 };

/* Words that say nothing about the peak. SXM and OAM parts are the rows without a form factor. */
static const char *const neutral[] = {"NVIDIA", "AMD", "TESLA", "GEFORCE", "INSTINCT", "TENSOR",
                                      "CORE",   "GPU", "SXM",   "SXM2",    "SXM4",     "SXM5",
                                      "SXM6",   "OAM", "HBM2",  "HBM2E",   "HBM3",     "HBM3E"};

typedef struct words {
    char word[WORDS][LONGEST];
    int count; /* -1: too many or too long */
} words;

static words split(const char *text) {
    words w = {.count = 0};
    while (*text) {
        size_t length = 0;
        while (!isalnum((unsigned char)*text) && *text) text++;
        while (isalnum((unsigned char)text[length])) length++;
        if (!length) break;
        if (w.count == WORDS || length >= LONGEST) return (words){.count = -1};
        RAVEL_ASSERT(w.count >= 0 && w.count < WORDS && length < LONGEST);
        for (size_t i = 0; i < length; i++) w.word[w.count][i] = (char)toupper((unsigned char)text[i]);
        w.word[w.count++][length] = '\0';
        text += length;
    }
    return w;
}

/* "80GB", "480GB": a size of memory. */
static int is_size(const char *word) {
    size_t digits = strspn(word, "0123456789");
    return digits > 0 && strcmp(word + digits, "GB") == 0;
}

static int is_neutral(const char *word) {
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++)
        if (strcmp(word, neutral[i]) == 0) return 1;
    return is_size(word);
}

static int has(const words *w, const char *word) {
    for (int i = 0; i < w->count; i++)
        if (strcmp(w->word[i], word) == 0) return 1;
    return 0;
}

/* A100 and L-series cards have one peak whatever their form factor. */
static int same_on_pcie(const char *row) {
    return row[0] == 'A' || row[0] == 'L';
}

static int matches(const words *given, const char *row) {
    words wanted = split(row);
    RAVEL_ASSERT(wanted.count > 0 && given->count > 0); /* the rows are ours */
    for (int i = 0; i < wanted.count; i++)
        if (!has(given, wanted.word[i])) return 0;
    for (int i = 0; i < given->count; i++) {
        const char *word = given->word[i];
        int known = has(&wanted, word) || is_neutral(word) || (strcmp(word, "PCIE") == 0 && same_on_pcie(row));
        if (!known) return 0;
    }
    return wanted.count > 0;
}

double ravel_gpu_peak(const char *name) {
    words given = split(name ? name : "");
    for (int i = 0; given.count > 0 && i < GPUS; i++)
        if (matches(&given, gpus[i].name)) return gpus[i].teraflops * 1e12;
    return 0;
}

const char *ravel_gpu_name(int32_t index, double *peak) {
    if (index < 0 || index >= GPUS) return NULL;
    if (peak) *peak = gpus[index].teraflops * 1e12;
    return gpus[index].name;
}
