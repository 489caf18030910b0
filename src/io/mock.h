/* Mock data from options, and with another seed or count than described (ravel/mock.h). */
#ifndef RAVEL_IO_MOCK_H
#define RAVEL_IO_MOCK_H

#include <ravel/mock.h>

void ravel__mock_options_default(ravel_mock_options *options);
/* `options` and its strings are copied. The file of mode file is read here. */
ravel_status ravel__mock_create(const ravel_mock_options *options, ravel_mock **mock, ravel_error *err);
/* From JSON text; a member that is not known is an error with a suggestion. */
ravel_status ravel__mock_parse(const char *json_text, size_t bytes, const ravel_allocator *allocator, ravel_mock **mock,
                               ravel_error *err);
/* The same distribution with another seed or count; 0 leaves the count as it is. */
void ravel__mock_reseed(ravel_mock *mock, uint64_t seed);
void ravel__mock_recount(ravel_mock *mock, int64_t count);

#endif
