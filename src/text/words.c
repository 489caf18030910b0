/* Pre-tokenizers: text to words.
 *
 *     step 0   \p{N}{1,3}         "in 2024 it"  -->  "in "  "2024"  " it"
 *     step 1   ...                 each of these is cut again, as a text of its own
 *
 * A step gives spans in turn, matches and what lies between; its behavior says which spans are joined or left out. */
#include "text/tokenizer.h"

#include "base/assert.h"

typedef struct span {
    size_t begin, end;
    int match, there;
} span;

typedef struct cutting {
    const ravel__cutter *cutter;
    const char *text, *searched;
    int step;
    span held; /* may still be joined by the next one */
} cutting;

static int joins(int behavior, int before, int now) {
    switch (behavior) {
    case RAVEL__WITH_PREVIOUS: return now && !before;
    case RAVEL__WITH_NEXT: return before && !now;
    case RAVEL__CONTIGUOUS: return before == now;
    default: return 0;
    }
}

static ravel_status release(cutting *c, ravel_error *err) {
    RAVEL_ASSERT(c->step >= 0 && c->step < c->cutter->tokenizer->step_count);
    const ravel__step *step = &c->cutter->tokenizer->steps[c->step];
    span s = c->held;
    c->held.there = 0;
    if (!s.there || s.begin == s.end || (s.match && step->behavior == RAVEL__REMOVED)) return RAVEL_OK;
    return ravel__cut_words(c->cutter, c->step + 1, c->text + s.begin, c->searched + s.begin, s.end - s.begin, err);
}

static ravel_status take_span(cutting *c, size_t begin, size_t end, int match, ravel_error *err) {
    const ravel__step *step = &c->cutter->tokenizer->steps[c->step];
    match ^= step->invert;
    RAVEL_ASSERT(begin <= end && (!c->held.there || c->held.end == begin)); /* spans follow each other */
    if (c->held.there && joins(step->behavior, c->held.match, match)) {
        c->held.end = end;
        c->held.match = match;
        return RAVEL_OK;
    }
    ravel_status status = release(c, err);
    c->held = (span){begin, end, match, 1};
    return status;
}

static size_t next_character(const char *text, size_t at, size_t bytes) {
    RAVEL_ASSERT(at <= bytes);
    do at++;
    while (at < bytes && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static ravel_status gave_up(ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA,
                           "the text could not be cut into words: a pattern of the tokenizer takes too many steps on "
                           "it; such text is usually one character repeated very often");
}

ravel_status ravel__cut_words(const ravel__cutter *cutter, int step, const char *text, const char *searched,
                              size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(step >= 0 && step <= cutter->tokenizer->step_count && bytes > 0);
    const ravel_tokenizer *t = cutter->tokenizer;
    if (step == t->step_count) return cutter->take(cutter->user, text, bytes, err);
    cutting c = {cutter, text, searched, step, {0, 0, 0, 0}};
    size_t done = 0, from = 0, begin, end, last_end = SIZE_MAX;
    ravel_status status = RAVEL_OK;
    while (from <= bytes && !status) {
        int found = ravel__regex_search(t->steps[step].regex, cutter->state, searched, bytes, from, &begin, &end);
        if (found < 0) return gave_up(err);
        if (!found) break;
        RAVEL_ASSERT(begin >= done && end <= bytes);
        if (begin == end && begin == last_end) { /* an empty match right after a match is none */
            from = next_character(text, begin, bytes);
            continue;
        }
        if (done < begin) status = take_span(&c, done, begin, 0, err);
        if (!status) status = take_span(&c, begin, end, 1, err);
        from = end > begin ? end : next_character(text, end, bytes);
        RAVEL_ASSERT(from > begin && done <= end);
        done = last_end = end;
    }
    if (done < bytes && !status) status = take_span(&c, done, bytes, 0, err);
    return status ? status : release(&c, err);
}
