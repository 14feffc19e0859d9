/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which rule names a connection that was not seen to open. */
#ifndef SOCKHEALTH_CHOOSE_H
#define SOCKHEALTH_CHOOSE_H

#include "direction.h"
#include "match.h"
#include "options.h"

/* The directions to match: what the record knows, and what the listeners tell. */
static __always_inline __u8 directions(struct sh_pass *pass, const struct sh_record *rec,
				       const struct sh_adoption *row)
{
	struct sh_listener key = {.netns = row->netns, .port = row->local_port};
	__u8 inferred;

	if (rec && !(rec->flags & SH_ADOPTED))
		return rec->direction;
	/* A listener may be gone by now, and has told all the same. */
	if (rec && rec->direction == SH_INBOUND && !(rec->flags & SH_AMBIGUOUS))
		return SH_INBOUND;
	__builtin_memcpy(key.addr, row->local, sizeof(key.addr));
	inferred = infer(pass, &key);
	if (!rec || inferred == SH_INBOUND)
		return inferred;
	return rec->flags & SH_AMBIGUOUS ? SH_BOTH : rec->direction;
}

/* A global function: the verifier looks at what follows once, and not for each rule. */
__noinline int rule_at(struct sh_rules *rules, __u32 port, __u32 direction)
{
	return rules ? find_rule(rules, port, direction, 0) : NO_RULE;
}

/*
 * The rule that names the connection by one of the directions, the tighter one of
 * two; NULL: none does.
 */
static __always_inline struct sh_rule *choose(struct sh_rules *rules, __u32 directions,
					      const struct sh_adoption *row, __u8 *direction)
{
	__u32 out = NO_RULE, in = NO_RULE;

	if (directions & SH_OUTBOUND)
		out = rule_at(rules, row->remote_port, SH_OUTBOUND);
	if (directions & SH_INBOUND)
		in = rule_at(rules, row->local_port, SH_INBOUND);
	*direction = SH_OUTBOUND;
	if (out >= NO_RULE ||
	    (in < NO_RULE && sh_sooner(rule_of(rules, in)->options.user_timeout_ms,
				       rule_of(rules, out)->options.user_timeout_ms))) {
		*direction = SH_INBOUND;
		out = in;
	}
	return out < NO_RULE ? rule_of(rules, out) : NULL;
}

#endif
