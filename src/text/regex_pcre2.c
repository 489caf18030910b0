/* Searches by PCRE2, the one file that knows it. The library is loaded when the first pattern is compiled, so libravel
 * links nothing and a program that never opens a tokenizer never needs it. */
#include "text/regex.h"

#include "base/assert.h"
#include "base/memory.h"

#include <string.h>

#ifdef RAVEL_HAVE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <dlfcn.h>
#include <pcre2.h>
#include <pthread.h>

/* ---- the library ---------------------------------------------------------------------------------------- */

/* X(name): the functions that are used. */
#define FUNCTIONS(X)          \
    X(compile)                \
    X(jit_compile)            \
    X(match)                  \
    X(code_free)              \
    X(get_error_message)      \
    X(get_ovector_pointer)    \
    X(general_context_create) \
    X(general_context_free)   \
    X(match_context_create)   \
    X(match_context_free)     \
    X(set_match_limit)        \
    X(match_data_create)      \
    X(match_data_free)        \
    X(compile_context_create) \
    X(compile_context_free)

static struct {
#define X(name) __typeof__(&pcre2_##name##_8) name;
    FUNCTIONS(X)
#undef X
    int found;
} pcre2;

#ifdef RAVEL_ALONE /* linked with it */
static void load_pcre2(void) {
#define X(name) pcre2.name = pcre2_##name##_8;
    FUNCTIONS(X)
#undef X
    pcre2.found = 1;
}
#else
static void load_pcre2(void) {
    void *library = dlopen("libpcre2-8.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    pcre2.found = 1;
#define X(name)                                                  \
    *(void **)&pcre2.name = dlsym(library, "pcre2_" #name "_8"); \
    if (!pcre2.name) pcre2.found = 0;
    FUNCTIONS(X)
#undef X
}
#endif

static ravel_status need_pcre2(ravel_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_pcre2);
    if (pcre2.found) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "this tokenizer needs the library libpcre2-8.so.0, which could not be loaded (Debian: "
                           "apt-get install libpcre2-8-0)");
}

/* ---- memory through the caller's hook -------------------------------------------------------------------- */

/* PCRE2 frees without a size, so each block begins with its own. */
enum { HEADER = 16 };

typedef struct hook {
    const ravel_allocator *allocator;
    int failed; /* since it was last looked at */
} hook;

static void *hook_alloc(size_t bytes, void *user) {
    hook *h = user;
    char *block = bytes > SIZE_MAX - HEADER ? NULL : ravel__alloc(h->allocator, bytes + HEADER);
    if (!block) return h->failed = 1, NULL;
    memcpy(block, &bytes, sizeof bytes);
    return block + HEADER;
}

static void hook_free(void *at, void *user) {
    size_t bytes;
    if (!at) return;
    memcpy(&bytes, (char *)at - HEADER, sizeof bytes);
    RAVEL_ASSERT(bytes <= SIZE_MAX - HEADER);
    ravel__release(((hook *)user)->allocator, (char *)at - HEADER, bytes + HEADER);
}

/* ---- patterns ------------------------------------------------------------------------------------------- */

struct ravel__regex {
    hook hook;
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct ravel__regex_state {
    hook hook;
    pcre2_general_context *memory;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

static ravel_status bad_pattern(const char *pattern, int number, size_t at, ravel_error *err) {
    PCRE2_UCHAR text[120] = "";
    (void)pcre2.get_error_message(number, text, sizeof text);
    return ravel_error_set(err, RAVEL_E_DATA, "the pattern \"%.200s\" is wrong: %s (at byte %zu of \"%.300s\")",
                           pattern, (const char *)text, at, pattern);
}

static ravel_status compile(const char *pattern, const char *translated, ravel__regex *r, ravel_error *err) {
    RAVEL_ASSERT(pcre2.found && !r->code);
    int number;
    PCRE2_SIZE at;
    r->memory = pcre2.general_context_create(hook_alloc, hook_free, &r->hook);
    pcre2_compile_context *context = r->memory ? pcre2.compile_context_create(r->memory) : NULL;
    if (!context) return ravel__no_memory(err, sizeof *r, "a pattern");
    r->code = pcre2.compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_MULTILINE, &number, &at,
                            context);
    pcre2.compile_context_free(context);
    if (!r->code && r->hook.failed) return ravel__no_memory(err, 0, "a pattern");
    if (!r->code) return bad_pattern(pattern, number, at, err);
    /* where the system forbids generated code, the same matches are found more slowly */
    if (pcre2.jit_compile(r->code, PCRE2_JIT_COMPLETE) < 0 && r->hook.failed)
        return ravel__no_memory(err, 0, "a pattern");
    return RAVEL_OK;
}

ravel_status ravel__regex_compile(const char *pattern, const ravel_allocator *allocator, ravel__regex **regex,
                                  ravel_error *err) {
    ravel_status status = need_pcre2(err);
    if (status) return status;
    size_t room = ravel__regex_translate_bound(strlen(pattern));
    char *translated = ravel__alloc(allocator, room);
    ravel__regex *r = ravel__calloc(allocator, 1, sizeof *r);
    if (r) r->hook.allocator = allocator;
    if (translated && r) {
        status = ravel__regex_translate(pattern, translated, room, err);
        if (!status) status = compile(pattern, translated, r, err);
    } else {
        status = ravel__no_memory(err, room, "a pattern");
    }
    ravel__release(allocator, translated, room);
    if (status)
        ravel__regex_free(r);
    else
        *regex = r;
    return status;
}

void ravel__regex_free(ravel__regex *regex) {
    if (!regex) return;
    if (regex->code) pcre2.code_free(regex->code);
    if (regex->memory) pcre2.general_context_free(regex->memory);
    ravel__release(regex->hook.allocator, regex, sizeof *regex);
}

/* ---- searches ------------------------------------------------------------------------------------------- */

ravel_status ravel__regex_state_create(const ravel_allocator *allocator, ravel__regex_state **state, ravel_error *err) {
    ravel_status status = need_pcre2(err);
    if (status) return status;
    ravel__regex_state *s = ravel__calloc(allocator, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "the state of searches");
    s->hook.allocator = allocator;
    s->memory = pcre2.general_context_create(hook_alloc, hook_free, &s->hook);
    s->data = s->memory ? pcre2.match_data_create(1, s->memory) : NULL;
    s->limits = s->data ? pcre2.match_context_create(s->memory) : NULL;
    if (!s->limits) {
        ravel__regex_state_free(s);
        return ravel__no_memory(err, 0, "the state of searches");
    }
    (void)pcre2.set_match_limit(s->limits, 100 * 1000 * 1000); /* seconds, never minutes, on hostile text */
    *state = s;
    return RAVEL_OK;
}

void ravel__regex_state_free(ravel__regex_state *state) {
    if (!state) return;
    if (state->limits) pcre2.match_context_free(state->limits);
    if (state->data) pcre2.match_data_free(state->data);
    if (state->memory) pcre2.general_context_free(state->memory);
    ravel__release(state->hook.allocator, state, sizeof *state);
}

int ravel__regex_search(const ravel__regex *regex, ravel__regex_state *state, const char *text, size_t bytes,
                        size_t from, size_t *begin, size_t *end) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int got = pcre2.match(regex->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, state->data, state->limits);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT)
        got = pcre2.match(regex->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state->data,
                          state->limits);
    if (got == PCRE2_ERROR_NOMATCH) return 0;
    if (got < 0) return -1;
    const PCRE2_SIZE *bounds = pcre2.get_ovector_pointer(state->data);
    RAVEL_ASSERT(bounds[0] <= bounds[1] && bounds[1] <= bytes && bounds[0] >= from);
    *begin = bounds[0];
    *end = bounds[1];
    return 1;
}

#else /* built without PCRE2 */

ravel_status ravel__regex_compile(const char *pattern, const ravel_allocator *allocator, ravel__regex **regex,
                                  ravel_error *err) {
    (void)pattern, (void)allocator, (void)regex;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "this tokenizer has a regular expression, and this build has no PCRE2 (Debian: apt-get "
                           "install libpcre2-dev, then make reprobe)");
}

void ravel__regex_free(ravel__regex *regex) {
    (void)regex;
}

ravel_status ravel__regex_state_create(const ravel_allocator *allocator, ravel__regex_state **state, ravel_error *err) {
    (void)allocator, (void)err;
    *state = NULL;
    return RAVEL_OK;
}

void ravel__regex_state_free(ravel__regex_state *state) {
    (void)state;
}

int ravel__regex_search(const ravel__regex *regex, ravel__regex_state *state, const char *text, size_t bytes,
                        size_t from, size_t *begin, size_t *end) {
    (void)regex, (void)state, (void)text, (void)bytes, (void)from, (void)begin, (void)end;
    return 0;
}

#endif
