/* YAML of one level, as configurations are: "key: value" lines. It becomes the text of a JSON object.
 *
 *     steps: 200            # a comment
 *     data: "a.jsonl:0.7 b.jsonl:0.3"
 *     model: 'it''s here'
 *     eval-data: ~          (null, and an empty value, likewise)
 *     quiet: true
 *     sinks: [jsonl, csv]   a list of values, or in lines that begin with "- "
 *
 * Numbers, true, false and null are as in JSON, every other plain word is a string. Nested mappings and lists, anchors,
 * tags and text of several lines are refused with their line: no option takes them. The JSON text has the same
 * lines. */
#ifndef RAVEL_BASE_YAML_H
#define RAVEL_BASE_YAML_H

#include <ravel/base.h>

/* *json is malloc'ed text of *json_bytes, to be freed by the caller. E_DATA names the line. */
ravel_status ravel__yaml_to_json(const char *text, size_t bytes, char **json, size_t *json_bytes, ravel_error *err);

#endif
