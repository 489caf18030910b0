/* ravel/ravel.h: includes all headers, of two kinds.
 *
 * Stable: names and meanings stay from one minor version to the next. Structs grow at their end only, and a function
 * that has to go is deprecated for one minor version first.
 *
 *     base, options, dtype, shape          status and errors, memory, option tables, element types, sizes of a model
 *     device                               where memory is: host, pinned, CUDA; streams and events
 *     plan                                 lengths in, plan out
 *     batch, weights                       packed arrays, exact loss weights
 *     comm, mesh                           ranks
 *     order, source, exchange, meta, feed  from a data set to packed micro-batches on every rank
 *     refit, publish                       weights from trainers to generators
 *     metrics, flops                       counts of tokens, FLOPs and time
 *
 * Experimental: what our own commands and the Python package use, and may change in any version. Their first line says
 * so.
 *
 *     tree, tree_batch                     samples that share prefixes
 *     policy, routes                       losses of RL, experts' routes
 *     tokenizer, chat                      text to token ids and back, conversations to tokens and a loss mask
 *     safetensors, lengths, mock           files and mock data
 *     report                               a plan as JSON, CSV, page or picture
 */
#ifndef RAVEL_RAVEL_H
#define RAVEL_RAVEL_H

/* stable */
#include <ravel/base.h>
#include <ravel/batch.h>
#include <ravel/comm.h>
#include <ravel/device.h>
#include <ravel/dtype.h>
#include <ravel/exchange.h>
#include <ravel/feed.h>
#include <ravel/flops.h>
#include <ravel/mesh.h>
#include <ravel/meta.h>
#include <ravel/metrics.h>
#include <ravel/options.h>
#include <ravel/order.h>
#include <ravel/plan.h>
#include <ravel/publish.h>
#include <ravel/refit.h>
#include <ravel/shape.h>
#include <ravel/source.h>
#include <ravel/weights.h>

/* experimental */
#include <ravel/chat.h>
#include <ravel/lengths.h>
#include <ravel/mock.h>
#include <ravel/policy.h>
#include <ravel/report.h>
#include <ravel/routes.h>
#include <ravel/safetensors.h>
#include <ravel/tokenizer.h>
#include <ravel/tree.h>
#include <ravel/tree_batch.h>

#endif
