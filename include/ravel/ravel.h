/* ravel/ravel.h: everything at once. The headers, from the ground up:
 *
 *     base, options, json, dtype        status and errors, memory, option tables, element types
 *     shape                             a transformer's sizes
 *     plan                              lengths in, plan out
 *     batch, weights                    packed arrays and exact loss weights
 *     comm, mesh                        ranks
 *     metrics, flops                    where every token and every second went
 *     safetensors, lengths, mock        files and mock data
 *     report                            a plan as JSON, CSV, page and picture
 */
#ifndef RAVEL_RAVEL_H
#define RAVEL_RAVEL_H

#include <ravel/base.h>
#include <ravel/batch.h>
#include <ravel/comm.h>
#include <ravel/dtype.h>
#include <ravel/flops.h>
#include <ravel/json.h>
#include <ravel/lengths.h>
#include <ravel/mesh.h>
#include <ravel/metrics.h>
#include <ravel/mock.h>
#include <ravel/options.h>
#include <ravel/plan.h>
#include <ravel/report.h>
#include <ravel/safetensors.h>
#include <ravel/shape.h>
#include <ravel/weights.h>

#endif
