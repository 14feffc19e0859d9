// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// How long a guarded connection lives from a pass on if none comes any more: at
// least, and at least twice its user timeout. Without TCP_RTO_MAX_MS it is also how
// far apart the kernel's probes come at most, and so what it takes to notice that
// they stay unanswered.
const (
	guardCeiling       = 10 * time.Minute
	guardCeilingBefore = time.Minute // before kernel.RTOCap
)

// GuardStep is what a pass of the guard made of a connection.
type GuardStep uint8

// The steps.
const (
	GuardRaised = GuardStep(guardShGuardStepSH_GUARD_RAISED) // it is guarded from now on
	GuardKept   = GuardStep(guardShGuardStepSH_GUARD_KEPT)   // as it was before
	GuardSilent = GuardStep(guardShGuardStepSH_GUARD_SILENT) // its peer stopped answering: it ends soon
	GuardEnded  = GuardStep(guardShGuardStepSH_GUARD_ENDED)  // it has its own user timeout back
)

// String returns the word for it.
func (s GuardStep) String() string {
	switch s {
	case GuardRaised:
		return "raised"
	case GuardKept:
		return "kept"
	case GuardSilent:
		return "silent"
	case GuardEnded:
		return "ended"
	}
	return fmt.Sprintf("step_%d", uint8(s))
}

// Guarded is a connection whose peer does not read, and whose user timeout is the
// guard's for that, or was until now.
type Guarded struct {
	Netns  uint32 // inode
	Cookie uint64 // 0: nobody asked for one
	Policy uint32 // id; see InForce
	Step   GuardStep
	// UserTimeout is set on the socket now.
	UserTimeout time.Duration
}

// Survey is what there is to guard on the node.
type Survey struct {
	// Shut are the namespaces, by inode, with connections that Guard has something to
	// do for, and how many.
	Shut map[uint32]uint32
	// Shortest is the shortest user timeout of any managed connection; 0: none has one.
	Shortest time.Duration
}

// SurveyWindows finds where peers have shut their windows, in one walk over the
// records of all namespaces that takes no socket's lock. The error wraps
// ErrUnsupported before Linux 5.15. It is for one caller at a time. With another error
// what it found before is returned as well.
func (p *Programs) SurveyWindows() (Survey, error) {
	out := Survey{Shut: make(map[uint32]uint32)}
	done, ok := p.use()
	if !ok {
		return out, fmt.Errorf("survey windows: %w", ErrClosed)
	}
	defer done()
	objects, err := p.guarder()
	if err != nil {
		return out, err
	}
	if err := errors.Join(objects.ShortestMs.Set(uint32(0)), objects.Unnoted.Set(uint32(0))); err != nil {
		return out, fmt.Errorf("survey windows: %w", err)
	}
	if err := walkRecords(objects.ShSurvey, p.sockops.ShRecords); err != nil {
		return out, err
	}
	var ms, unnoted, inode, n uint32
	if err := errors.Join(objects.ShortestMs.Get(&ms), objects.Unnoted.Get(&unnoted)); err != nil {
		return out, fmt.Errorf("survey windows: %w", err)
	}
	out.Shortest = time.Duration(ms) * time.Millisecond
	it := objects.ShShut.Iterate()
	for it.Next(&inode, &n) {
		out.Shut[inode] = n
	}
	if err := it.Err(); err != nil {
		return out, fmt.Errorf("survey windows: %w", err)
	}
	for inode := range out.Shut {
		if err := objects.ShShut.Delete(inode); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return out, fmt.Errorf("survey windows: %w", err)
		}
	}
	if unnoted > 0 {
		return out, fmt.Errorf("survey windows: no room for the namespaces of %d connections", unnoted)
	}
	return out, nil
}

// Guard sees to it that TCP_USER_TIMEOUT ends no managed connection in the namespace
// of the calling thread whose peer keeps its window shut and answers the kernel's
// probes, and that one whose peer stopped answering ends by its user timeout plus
// interval, which is the time to the next pass. It calls fn for each connection that
// is guarded, or was until now. An error of fn ends the pass and is returned.
//
// While a connection is guarded its user timeout is longer, and finite: where no pass
// comes any more it ends all the same. What the record says is set (Effective) is what
// will be put back.
//
// The error wraps ErrUnsupported before Linux 5.15. A pass waits where an application
// holds the lock of a socket.
func (p *Programs) Guard(interval time.Duration, fn func(Guarded) error) error {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("guard connections: %w", ErrClosed)
	}
	defer done()
	objects, err := p.guarder()
	if err != nil {
		return err
	}
	err = errors.Join(objects.IntervalMs.Set(uint32(interval/time.Millisecond)), objects.WindowMs.Set(uint32(p.inForce.Load().shortestWindow()/time.Millisecond)))
	if err != nil {
		return fmt.Errorf("guard connections: %w", err)
	}
	return walk(objects.ShGuard, binary.Size(guardShGuarded{}), func(b []byte) error {
		var g guardShGuarded
		if _, err := binary.Decode(b, binary.NativeEndian, &g); err != nil {
			return err
		}
		return fn(Guarded{
			Netns: g.Netns, Cookie: g.Cookie, Policy: g.Policy, Step: GuardStep(g.Step),
			UserTimeout: time.Duration(g.UserTimeoutMs) * time.Millisecond,
		})
	})
}

// Unguard is Guard for when the programs come off (Release): a peer that still does not
// read has the user timeout that its application asked for, and from now on that runs.
// Guard is not called afterwards.
func (p *Programs) Unguard() error {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("leave guarded connections: %w", ErrClosed)
	}
	objects, err := p.guarder()
	if err == nil {
		err = objects.Restores.Set(true)
	}
	done()
	if err != nil {
		return err
	}
	return p.Guard(time.Second, func(Guarded) error { return nil })
}

// guarder is what gives kernel.Guard.
func (p *Programs) guarder() (*guardObjects, error) {
	return p.guard.get(func() (*guardObjects, error) { return loadExtra[guardObjects](p, kernel.Guard, loadGuard) })
}

// setGuard tells the guard's program what this kernel has.
func (p *Programs) setGuard(spec *ebpf.CollectionSpec) error {
	ceiling, ok := spec.Variables[guardVarCeilingMs]
	if !ok {
		return nil // another object
	}
	caps, least := p.capsRTO() == nil, guardCeilingBefore
	if caps {
		least = guardCeiling
	}
	return errors.Join(ceiling.Set(uint32(least/time.Millisecond)), spec.Variables[guardVarCapsRto].Set(caps))
}

// shortestWindow is the shortest probe window of the policy, 0 where none is in force.
func (f *InForce) shortestWindow() (shortest time.Duration) {
	if f == nil {
		return 0
	}
	for i := range f.Policy.Peers {
		if w := f.Policy.Peers[i].Probe.Window; shortest == 0 || w < shortest {
			shortest = w
		}
	}
	return shortest
}
