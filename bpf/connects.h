/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Taking leave of connect() calls that are under way. */
#ifndef SOCKHEALTH_CONNECTS_H
#define SOCKHEALTH_CONNECTS_H

#include "set.h"
#include "adopt.h"

/*
 * A pass that takes leave gives a connect() under way its own user timeout back,
 * unless that is what it has by now.
 */
static __always_inline void connects(struct tcp_sock *tp, const struct sh_pass *pass)
{
	struct sh_record *rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);

	if (!rec || !pass->leave || !(rec->flags & SH_CONNECTING))
		return;
	if (tp->inet_conn.icsk_user_timeout == rec->effective.user_timeout_ms)
		set_opt(tp, SOL_TCP, TCP_USER_TIMEOUT, rec->app.user_timeout_ms,
			SH_FAULT_SET_USER_TIMEOUT);
	bpf_sk_storage_delete(&sh_records, tp);
}

#endif
