/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a pass notes of the listeners that it meets. */
#ifndef SOCKHEALTH_LISTENS_H
#define SOCKHEALTH_LISTENS_H

#include "direction.h"
#include "kernels.h"

static __always_inline void listens(struct tcp_sock *tp, struct sh_pass *pass,
				    struct sh_adoption *row)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct sh_listener key = {.netns = row->netns, .port = row->local_port};

	mark_listener(tp);
	__builtin_memcpy(key.addr, row->local, sizeof(key.addr));
	note_listener(pass, &key, BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_ipv6only));
	row->outcome = SH_ADOPT_LISTENER;
}

#endif
