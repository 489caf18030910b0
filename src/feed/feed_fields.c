/* The fields, and which part of the model gets each.
 *
 *     tokens      first part (input ids)
 *     labels      last part; without labels in the source: the tokens, shifted by one position when packed
 *     weights     last part; made after the exchange from the loss mask and the counts of the update
 *     all others  last part
 *
 * options.first_fields and last_fields change that; a chunk that asks gets everything. Samples of a fixed shape have
 * neither tokens nor labels; weights are one per sample then, and every part gets all fields. */
#include "feed/feed.h"

#include "base/assert.h"

#include <string.h>

static int64_t find(const ravel__fields *fields, const char *name, size_t bytes) {
    for (int64_t f = 0; f < fields->count; f++)
        if (strlen(fields->list[f].name) == bytes && memcmp(fields->list[f].name, name, bytes) == 0) return f;
    return -1;
}

/* Gives `role` to the fields of a list; "*" gives it to all but `spared`. */
static ravel_status give_role(ravel__fields *fields, const char *list, int32_t role, int64_t spared, ravel_error *err) {
    RAVEL_ASSERT(role == ROLE_FIRST || role == ROLE_LAST);
    while (list && *list) {
        size_t bytes = strcspn(list, ",");
        int64_t f = find(fields, list, bytes);
        if (bytes == 1 && *list == '*') {
            for (int64_t i = 0; i < fields->count; i++)
                if (i != spared) fields->roles[i] |= (uint8_t)role;
        } else if (f < 0) {
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s-fields names \"%.*s\", and samples have no such field",
                                   role == ROLE_FIRST ? "first" : "last", (int)bytes, list);
        } else {
            fields->roles[f] |= (uint8_t)role;
        }
        list += bytes + (list[bytes] == ',');
    }
    return RAVEL_OK;
}

static void copy_given(ravel__fields *fields, const ravel_field *given, int64_t count) {
    RAVEL_ASSERT(count >= 0 && count <= RAVEL__FIELDS_MAX);
    for (int64_t f = 0; f < count; f++) {
        size_t bytes = strlen(given[f].name) + 1;
        RAVEL_ASSERT(bytes <= RAVEL__NAME_BYTES);
        fields->list[f] = given[f];
        memcpy(fields->names[f], given[f].name, bytes);
        fields->list[f].name = fields->names[f];
        fields->list[f].data = NULL;
        if (fields->list[f].width < 1) fields->list[f].width = 1;
    }
    fields->count = fields->given = count;
}

/* The fields that the feed itself uses, by name. A field of that name that it cannot use is an error: it would be left
 * out without a word. */
static const struct used {
    const char *name;
    const char *dtypes; /* of this kind (ravel_dtype_kind) ... */
    int32_t bytes;      /* ... and size; 0: any */
    int32_t per_sample;
    const char *what;
} used[] = {{"sample_weight", "f", 0, 1, "one floating-point number per sample, like sample_weight:f32:sample"},
            {"group", "iu", 0, 1, "one whole number per sample, like group:i64:sample"},
            {"update", "iu", 0, 1, "one whole number per sample, like update:i32:sample"},
            {"cost", "iu", 0, 1, "one whole number per sample, like cost:i64:sample"},
            {"labels", "i", 4, 0, "one number per token, of dtype i32"}};

static int fits(const struct used *u, const ravel_field *field) {
    return strchr(u->dtypes, ravel_dtype_kind(field->dtype)) && field->width == 1 &&
           (!u->bytes || ravel_dtype_bytes(field->dtype) == u->bytes) &&
           ravel__field_per_sample(field) == u->per_sample;
}

static ravel_status find_used(ravel__fields *fields, ravel_error *err) {
    int64_t *const places[] = {&fields->sample_weight, &fields->group, &fields->update, &fields->cost, &fields->labels};
    _Static_assert(sizeof places / sizeof *places == sizeof used / sizeof *used, "a place for each");
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        int64_t f = *places[i] = find(fields, used[i].name, strlen(used[i].name));
        if (f >= 0 && !fits(&used[i], &fields->list[f]))
            return ravel_error_set(
                err, RAVEL_E_ARGUMENT,
                "the feed uses the field \"%s\" itself: it must be %s; give it another name if it is "
                "something else",
                used[i].name, used[i].what);
    }
    return RAVEL_OK;
}

static int64_t add(ravel__fields *fields, const char *name, int32_t dtype, double pad) {
    RAVEL_ASSERT(fields->count < RAVEL__FIELDS_MAX + 2);
    int64_t f = fields->count++;
    int32_t kind = fields->fixed ? RAVEL_FIELD_SAMPLE : RAVEL_FIELD_NEXT;
    fields->list[f] = (ravel_field){.name = name, .kind = kind, .dtype = dtype, .width = 1, .pad = pad};
    return f;
}

ravel_status ravel__fields_init(ravel__fields *fields, const ravel_field *given, int64_t count,
                                const ravel_feed_options *options, ravel_error *err) {
    memset(fields, 0, sizeof *fields);
    ravel_status status = ravel__fields_check(given, count, err);
    for (int64_t f = 0; f < count && !status; f++)
        if (strlen(given[f].name) >= RAVEL__NAME_BYTES)
            status = ravel_error_set(err, RAVEL_E_ARGUMENT, "the name of field \"%.60s\" is too long; the limit is %d",
                                     given[f].name, RAVEL__NAME_BYTES - 1);
        else if (strcmp(given[f].name, "weights") == 0)
            status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                     "samples have a field \"weights\", which the feed makes itself; call it "
                                     "\"sample_weight\" if it is one number per sample");
    if (status) return status;
    copy_given(fields, given, count);
    fields->tokens = find(fields, "tokens", 6);
    fields->fixed = fields->tokens < 0 || ravel__field_per_sample(&fields->list[fields->tokens]);
    fields->prompts = options->plan && options->plan->layout == RAVEL_LAYOUT_PADDED_2D;
    if (fields->fixed)
        fields->tokens = -1;
    else
        fields->list[fields->tokens].pad = options->pad_token;
    fields->mask = find(fields, "loss_mask", 9);
    status = find_used(fields, err);
    if (status) return status;
    if (fields->labels < 0 && !fields->fixed) fields->labels = add(fields, "labels", RAVEL_I32, -100);
    fields->weights = add(fields, "weights", RAVEL_F32, 0);
    if (fields->fixed) memset(fields->roles, ROLE_FIRST | ROLE_LAST, (size_t)fields->count);
    if (fields->fixed) return RAVEL_OK;
    status = give_role(fields, options->first_fields, ROLE_FIRST, -1, err);
    return status ? status : give_role(fields, options->last_fields, ROLE_LAST, fields->tokens, err);
}

ravel_ragged ravel__fields_to_weigh(const ravel__fields *fields, const ravel_ragged *store) {
    ravel_ragged weighed = *store;
    if (fields->fixed) weighed.offsets = NULL;
    return weighed;
}

int ravel__fields_wanted(const ravel__fields *fields, int64_t f, int32_t roles) {
    RAVEL_ASSERT(f >= 0 && f < fields->count);
    return (roles & ROLE_ASK) || (fields->roles[f] & roles);
}

int ravel__fields_needed(const ravel__fields *fields, int64_t f, int32_t roles) {
    RAVEL_ASSERT(f >= 0 && f < fields->given);
    if (ravel__fields_wanted(fields, f, roles)) return 1;
    int labels = fields->labels >= fields->given && ravel__fields_wanted(fields, fields->labels, roles);
    int weights = ravel__fields_wanted(fields, fields->weights, roles);
    return (f == fields->tokens && labels) || (weights && (f == fields->mask || f == fields->sample_weight));
}
