// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// The errors of a pass of adoption.
var (
	// ErrPassing says that a pass over that namespace is under way already.
	ErrPassing = errors.New("a pass over this network namespace is under way")
	// ErrNoPolicy says that no policy is in force.
	ErrNoPolicy = errors.New("no policy is in force")
)

// AdoptOptions of one pass.
type AdoptOptions struct {
	// Budget is how many keepalives the pass may set off: one leaves at once on
	// a connection that was silent for longer than its new idle time. Where none
	// is left the connection waits for a later pass (WaitBudget).
	Budget uint32
	// Release makes the pass one that takes leave: as if the policy named nobody,
	// every connection gets back what its application last asked for, and loses
	// its record. Programs that are still attached bound new ones all the same.
	Release bool
	// Connects makes it one that takes leave of the connect() calls under way alone:
	// they get their own user timeout back. It tells of nothing.
	Connects bool
}

// leave is what the program is told.
func (o *AdoptOptions) leave() uint8 {
	switch {
	case o.Release:
		return uint8(adoptShLeaveSH_LEAVE_ALL)
	case o.Connects:
		return uint8(adoptShLeaveSH_LEAVE_CONNECTS)
	}
	return uint8(adoptShLeaveSH_LEAVE_NOT)
}

// Adoption is what a pass found of one socket, and made of it.
type Adoption struct {
	conn.ID   // without a cookie where Outcome is Refused and nobody asked for one
	State     conn.State
	Policy    uint32 // id of the policy that names it, or did until now; see InForce
	Direction conn.Direction
	Outcome   Outcome
	Refusal   Refusal // why, where Outcome is Refused
	// Wait is what a later pass waits for before it sets the rest; WaitNone:
	// all is set.
	Wait Wait
	// Adopted and Ambiguous are the record's. Of a refused one Ambiguous says
	// that its policy is not certain either.
	Adopted, Ambiguous bool
}

// AdoptStats counts what a pass met: connections that a policy names, or named
// until then.
type AdoptStats struct {
	Outcomes [outcomes]uint64 // by Outcome
	Waits    [waits]uint64    // by Wait, refused ones not among them
	// Spent is what the pass took of its budget: the keepalives that it set off.
	Spent uint32
	// PutOff are the connections that found no budget left.
	PutOff uint64
	// Blind says that not all listeners could be noted: directions are then
	// uncertain, where they would else be outbound.
	Blind bool
}

// Pending returns how many connections wait for a later pass.
func (s *AdoptStats) Pending() (n uint64) {
	for w, count := range s.Waits {
		if Wait(w) != WaitNone {
			n += count
		}
	}
	return n
}

// Adopt brings the connections in the network namespace of the calling thread in
// line with the policy in force, in one pass, and calls fn for each that the
// policy names, or named until now:
//
// One without a record gets one, and the options: its direction is inferred from
// the listeners of the namespace. One whose record differs from the policy gets
// what the policy wants now. One whose options differ from its record has them
// held against the policy, as what its application last asked for. One that no
// policy names any more gets back what its application last asked for, and loses
// its record.
//
// Shorter user timeouts come last, once a packet from the peer is younger than
// the idle time and nothing is unanswered; until then the connection is pending,
// and waits for the next pass. Passes may be repeated at will. Before a walk of
// an older kernel ends, it may miss a connection or meet it twice: the next pass
// makes up for it.
//
// The error wraps ErrUnsupported before Linux 5.15, ErrPassing where another pass
// over that namespace is under way, ErrNoPolicy before the first SetPolicy. An
// error of fn ends the pass and is returned. A pass waits where an application
// holds the lock of a socket.
//
// Where sockops is not sure to be called for the end of every such connection
// (before Linux 6.12, or attached below the root of the hierarchy), the first pass
// attaches to a tracepoint that every TCP socket of the node passes when its state
// changes; it stays until Close, or is pinned beside the other programs.
func (p *Programs) Adopt(o AdoptOptions, fn func(Adoption) error) (AdoptStats, error) {
	var stats AdoptStats
	done, ok := p.use()
	if !ok {
		return stats, fmt.Errorf("adopt connections: %w", ErrClosed)
	}
	defer done()
	a, err := p.adopter()
	if err != nil {
		return stats, err
	}
	leaves := o.leave() != uint8(adoptShLeaveSH_LEAVE_NOT)
	if p.inForce.Load() == nil && !leaves {
		return stats, fmt.Errorf("adopt connections: %w", ErrNoPolicy)
	}
	here, err := netns.Current()
	if err != nil {
		return stats, fmt.Errorf("adopt connections: %w", err)
	}
	defer here.Close()
	if !leaves { // nobody will be there to be told
		if err := a.watch(p); err != nil {
			return stats, fmt.Errorf("adopt connections: %w", err)
		}
	}
	if err := a.begin(here.Inode(), o); err != nil {
		return stats, fmt.Errorf("adopt connections of %s: %w", here, err)
	}
	var listeners []adoptShListener
	err = walk(a.objects.ShAdopt, binary.Size(adoptShAdoption{}), func(b []byte) error {
		one, err := decodeAdoption(b, here.Inode())
		if err != nil {
			return err
		}
		if one.Outcome == outcomeListener {
			listeners = append(listeners, listenerKeys(&one)...)
			return nil
		}
		stats.Outcomes[one.Outcome]++
		if one.Outcome != Refused {
			stats.Waits[one.Wait]++
		}
		return fn(one)
	})
	return stats, a.end(here.Inode(), listeners, o, &stats, err)
}

// decodeAdoption turns one struct sh_adoption into an Adoption.
func decodeAdoption(b []byte, inode uint32) (Adoption, error) {
	var a adoptShAdoption
	if _, err := binary.Decode(b, binary.NativeEndian, &a); err != nil {
		return Adoption{}, fmt.Errorf("decode adoption of %d bytes: %w", len(b), err)
	}
	if a.Outcome == 0 || int(a.Outcome) > int(outcomeListener) || int(a.Refusal) >= len(refusalNames) || int(a.Wait) >= waits {
		return Adoption{}, fmt.Errorf("decode adoption: outcome %d, refusal %d, wait %d", a.Outcome, a.Refusal, a.Wait)
	}
	has := func(f adoptShRecordFlags) bool { return a.Flags&uint8(f) != 0 }
	return Adoption{
		ID: conn.ID{
			Netns: inode, Family: a.Family, Ifindex: a.BoundDev, Cookie: a.Cookie,
			Local: addrPort(a.Local, a.LocalPort), Remote: addrPort(a.Remote, a.RemotePort),
		},
		State: conn.State(a.State), Policy: a.Policy, Direction: conn.Direction(a.Direction),
		Outcome: Outcome(a.Outcome), Refusal: Refusal(a.Refusal), Wait: Wait(a.Wait),
		Adopted:   has(adoptShRecordFlagsSH_ADOPTED),
		Ambiguous: has(adoptShRecordFlagsSH_AMBIGUOUS),
	}, nil
}

// listenerKeys are the keys under which the program may have noted a listener.
func listenerKeys(a *Adoption) []adoptShListener {
	key := adoptShListener{Netns: a.Netns, Port: a.Local.Port(), Addr: a.Local.Addr().As16()}
	mapped, port := key, key
	mapped.Addr = [16]uint8{10: 0xff, 11: 0xff}
	for i := range port.Addr {
		port.Addr[i] = 0xff
	}
	return []adoptShListener{key, mapped, port}
}

// begin tells the program of a pass over the namespace.
func (a *adoption) begin(inode uint32, o AdoptOptions) error {
	pass, err := readPass()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passes++
	pass.Id, pass.BeganNs, pass.Budget = a.passes, uint64(a.began), o.Budget
	if a.noCallbacks == nil {
		pass.Callbacks = 1
	}
	pass.Leave = o.leave()
	err = a.objects.ShPasses.Update(inode, &pass, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return ErrPassing
	}
	return err
}

// end takes back what begin told and the pass noted; it fills in stats what the
// program counted, and returns err.
func (a *adoption) end(inode uint32, listeners []adoptShListener, o AdoptOptions, stats *AdoptStats, err error) error {
	for _, key := range listeners {
		if derr := a.objects.ShListeners.Delete(&key); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("forget a listener: %w", derr))
		}
	}
	var pass adoptShPass
	if lerr := a.objects.ShPasses.LookupAndDelete(inode, &pass); lerr != nil {
		return errors.Join(err, fmt.Errorf("end pass over netns %d: %w", inode, lerr))
	}
	stats.Spent, stats.PutOff, stats.Blind = o.Budget-pass.Budget, uint64(pass.PutOff), pass.Blind != 0
	return err
}
