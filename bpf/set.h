/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Setting the options. */
#ifndef SOCKHEALTH_SET_H
#define SOCKHEALTH_SET_H

#include "count.h"
#include "options.h"

/* Sets one option and counts a refusal. ctx is that of the calling program. */
#define set_opt(ctx, level, name, want, reason)                              \
	({                                                                   \
		int value = (want);                                          \
		if (bpf_setsockopt(ctx, level, name, &value, sizeof(value))) \
			fault(reason);                                       \
	})

/*
 * Brings the socket from one set of options to another. Keepalive comes first:
 * a user timeout on a socket whose keepalives are not set yet could end it for
 * one lost packet.
 */
#define set_options(ctx, from, to)                                                                \
	({                                                                                        \
		if ((to)->idle_s != (from)->idle_s)                                               \
			set_opt(ctx, SOL_TCP, TCP_KEEPIDLE, (to)->idle_s, SH_FAULT_SET_KEEPIDLE); \
		if ((to)->interval_s != (from)->interval_s)                                       \
			set_opt(ctx, SOL_TCP, TCP_KEEPINTVL, (to)->interval_s,                    \
				SH_FAULT_SET_KEEPINTVL);                                          \
		if ((to)->count != (from)->count)                                                 \
			set_opt(ctx, SOL_TCP, TCP_KEEPCNT, (to)->count, SH_FAULT_SET_KEEPCNT);    \
		if ((to)->keepalive != (from)->keepalive)                                         \
			set_opt(ctx, SOL_SOCKET, SO_KEEPALIVE, (to)->keepalive,                   \
				SH_FAULT_SET_KEEPALIVE);                                          \
		if ((to)->rto_max && (!(from)->rto_max || (to)->rto_max < (from)->rto_max))       \
			set_opt(ctx, SOL_TCP, TCP_RTO_MAX_MS, (to)->rto_max * 100,                \
				SH_FAULT_SET_RTO_MAX);                                            \
		if ((to)->user_timeout_ms != (from)->user_timeout_ms)                             \
			set_opt(ctx, SOL_TCP, TCP_USER_TIMEOUT, (to)->user_timeout_ms,            \
				SH_FAULT_SET_USER_TIMEOUT);                                       \
	})

#endif
