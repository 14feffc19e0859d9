// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// Found is a connection that a policy names.
type Found struct {
	conn.ID
	State conn.State
	// UID owns the socket, in the initial user namespace; of one that could not
	// be looked at, in this process's.
	UID       uint32
	Policy    string // name of the entry
	Direction conn.Direction
	// Uncertain says that Direction, and with it Policy, is a guess.
	Uncertain bool
	// Reason is why it is not bounded as the policy wants, "" where it is.
	Reason Reason
	// Options are set on it now.
	Options conn.Options

	left bool // its policy leaves such alone: nobody brings it in line
}

// mendable reports whether adoption ought to bring it in line.
func (f *Found) mendable() bool { return f.Reason.mendable() && !f.left }

// names reports whether the policy could name a connection, whoever opened it.
func names(p *policy.Policy, id *conn.ID) bool {
	_, out := p.Match(id.Remote, id.Local.Port(), conn.Outbound)
	_, in := p.Match(id.Remote, id.Local.Port(), conn.Inbound)
	return out || in
}

// decide says what a look amounts to; false: no policy names the connection.
// inferred are its directions by the listeners.
func decide(force *loader.InForce, inferred policy.Directions, s *conn.Snapshot) (Found, *policy.Peer, bool) {
	directions := inferred
	if s.HasRecord {
		directions = recalled(&s.Record, inferred)
	}
	peer, direction := force.Policy.Choose(s.Remote, s.Local.Port(), directions)
	if peer == nil {
		return Found{}, nil, false
	}
	f := Found{
		ID: s.ID, State: s.State, UID: s.UID, Policy: peer.Name, Direction: direction,
		Uncertain: directions == policy.Both, Options: s.Options,
	}
	if s.HasRecord {
		f.Reason = recorded(force, peer, s)
	} else {
		f.Reason, f.left = Unrecorded(s, peer), peer.LeaveExisting
	}
	return f, peer, true
}

// recalled returns the directions of a connection with a record, as adoption has
// them: it was seen to open, or its listener has told, and may be gone since, or is
// there now; else what was inferred then stands.
func recalled(r *conn.Record, inferred policy.Directions) policy.Directions {
	switch in := policy.Directions(conn.Inbound); {
	case !r.Adopted:
	case r.Direction == conn.Inbound && !r.Ambiguous, inferred == in:
		return in
	case r.Ambiguous:
		return policy.Both
	}
	return policy.Directions(r.Direction)
}

// recorded says how it stands with a connection that has a record.
func recorded(force *loader.InForce, peer *policy.Peer, s *conn.Snapshot) Reason {
	r, set := &s.Record, s.Options
	if r.Guarded {
		set.UserTimeout = r.Effective.UserTimeout
	}
	of := force.Peer(r.Policy)
	if most := r.Effective.RTOMax; set.RTOMax > 0 && set.RTOMax <= most || most == 0 || of != nil && of.Override == policy.Allow {
		set.RTOMax = most // a lower one is the application's, or the guard's
	}
	if r.Provoked {
		set.Idle = r.Effective.Idle
	}
	if r.Room != 0 && set.Count == r.Room {
		set.Count = r.Effective.Count
	}
	if set != r.Effective {
		return OptionsDrifted
	}
	if r.Pending || r.Releasing || of == nil || of.Name != peer.Name || r.Policed != force.Wanted(peer) {
		return Pending
	}
	return ""
}
