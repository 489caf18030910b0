/* ravel/ravel.h: includes all headers. They are, lowest floor first:
 *
 *     base, options, json, dtype, module  status and errors, memory, option tables, element types, loaded modules
 *     shape                               a transformer's sizes
 *     device                              where memory is: host, pinned, CUDA; streams, events, sharing
 *     slab                                tensors in one packed buffer, cast and hashed on the way
 *     plan, report                        lengths in, plan out; a plan as JSON, CSV, page or picture
 *     batch, tree_batch, weights, policy  packed arrays, shared prefixes once, exact loss weights, policy losses
 *     comm, mesh                          ranks
 *     order, source, exchange, meta, feed from a data set to packed micro-batches on every rank
 *     refit, publish                      weights from trainers to generators
 *     metrics, flops                      counts of tokens, FLOPs and time
 *     safetensors, lengths, mock, file    files and mock data
 *     tokenizer, chat                     text to token ids and back; conversations to tokens and a loss mask
 */
#ifndef RAVEL_RAVEL_H
#define RAVEL_RAVEL_H

#include <ravel/base.h>
#include <ravel/batch.h>
#include <ravel/chat.h>
#include <ravel/comm.h>
#include <ravel/device.h>
#include <ravel/dtype.h>
#include <ravel/exchange.h>
#include <ravel/feed.h>
#include <ravel/file.h>
#include <ravel/flops.h>
#include <ravel/json.h>
#include <ravel/lengths.h>
#include <ravel/mesh.h>
#include <ravel/meta.h>
#include <ravel/metrics.h>
#include <ravel/mock.h>
#include <ravel/module.h>
#include <ravel/options.h>
#include <ravel/order.h>
#include <ravel/plan.h>
#include <ravel/policy.h>
#include <ravel/publish.h>
#include <ravel/refit.h>
#include <ravel/report.h>
#include <ravel/safetensors.h>
#include <ravel/shape.h>
#include <ravel/slab.h>
#include <ravel/source.h>
#include <ravel/tokenizer.h>
#include <ravel/tree.h>
#include <ravel/tree_batch.h>
#include <ravel/weights.h>

#endif
