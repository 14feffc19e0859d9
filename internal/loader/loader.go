// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
)

// Programs are the loaded BPF objects and their maps.
type Programs struct {
	sockops sockopsObjects
	lookup  lookupObjects
	noHold  error // why kernel.Hold is not there
	cgroups sync.Once
	noGroup error // why kernel.SocketCgroup is not there, after cgroups
	caps    sync.Once
	noCap   error // why kernel.RTOCap is not there, after caps
	iter    extra[*iterObjects]
	provoke extra[*provokeObjects]
	destroy extra[*destroyObjects]
	adopt   extra[*adoption]
	silence extra[*silencer]
	guard   extra[*guardObjects]
	// watching says that the tracepoint of adoption is attached.
	watching atomic.Bool
	holders  holderWalks
	types    *Types
	began    time.Duration // when it was loaded

	links   []link.Link
	inForce atomic.Pointer[InForce]
	walks   sync.RWMutex      // read by walks while they run, written by Close
	closed  bool              // held by walks
	swap    sync.Mutex        // serialises SetPolicy
	ids     map[string]uint32 // policy name to id, held by swap
	nextID  uint32

	// For programs that outlive the process; zero for others.
	pins     *Pins
	hadEnded bool     // the tracepoint of the agent before was pinned
	before   []uint64 // faults that were counted before this start
	found    *found   // until Attach has put it in order
	takeover Takeover
	stood    *standing // until Settle
	names    *ebpf.Map // id to name
	state    *ebpf.Map
	kept     state     // what is in it, held by swap
	counts   []*counts // during an upgrade

	nested bool // see LoadNested

	// older makes a layout of an older build, for tests.
	older func(*ebpf.CollectionSpec)
}

// Load loads every object into the kernel. It attaches nothing; until
// SetPolicy no policy is in force. The caller closes the result, and with it
// everything is gone. A machine that lacks something is told by a *MissingError.
//
// Programs that are not needed at once are loaded at their first use; see Lacks.
// types may be nil: they are read then.
func Load(types *Types) (*Programs, error) { return load(&Programs{types: types}) }

// LoadNested is Load for programs that work below another agent's on purpose, and on
// connections that its policy does not name: neither of both takes notice of the other.
func LoadNested(types *Types) (*Programs, error) { return load(&Programs{nested: true, types: types}) }

// LoadPinned is Load for programs that stay when the process ends, pinned in a
// directory that the caller holds open. It goes on with what is pinned there: the
// records of the sockets, the counters, the ids of the policies. What is attached
// stays as it is until Attach, and so does the policy in force until SetPolicy.
func LoadPinned(pins *Pins, types *Types) (*Programs, error) {
	return load(&Programs{pins: pins, types: types})
}

func load(p *Programs) (_ *Programs, err error) {
	if err := Require(); err != nil {
		return nil, err
	}
	// Before Linux 5.11 maps count against RLIMIT_MEMLOCK; later this does nothing.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, &MissingError{
			What:   "the kernel counts BPF maps as locked memory and the limit cannot be raised",
			Remedy: "raise RLIMIT_MEMLOCK to unlimited, or run Linux 5.11 or later",
			Err:    err,
		}
	}
	p.ids, p.nextID, p.began = make(map[string]uint32), 1, conn.Now()
	if p.types == nil {
		p.types = new(Types)
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.pins != nil {
		if p.found, err = p.pins.find(); err != nil {
			return nil, err
		}
		p.takeover.Links = len(p.found.links) > 0
		p.hadEnded = p.found.ended
	}
	if err := p.loadSockops(); err != nil {
		return nil, err
	}
	if p.pins != nil {
		if err := p.openKept(); err != nil {
			return nil, err
		}
	}
	if p.older != nil {
		return p, nil // nobody looks at its records
	}
	if err := p.loadObject("lookup", loadLookup, &p.lookup); err != nil {
		return nil, err
	}
	return p, nil
}

// loadSockops loads the programs that will be attached, with the setsockopt
// program in its older form where the kernel has no better.
func (p *Programs) loadSockops() error {
	var errs []error
	for _, others := range []bool{true, false} {
		spec, err := loadSockops()
		if err != nil {
			return fmt.Errorf("read sockops object: %w", err)
		}
		if err := setHZ(spec); err != nil {
			return err
		}
		if err := spec.Variables[sockopsVarCanSetOthers].Set(others); err != nil {
			return fmt.Errorf("configure sockops object: %w", err)
		}
		if p.older != nil {
			p.older(spec)
		}
		if p.nested {
			rename(spec)
		}
		if err = spec.LoadAndAssign(&p.sockops, p.types.options(p.reused(spec))); err == nil {
			if !others {
				p.noHold = lacking(kernel.Hold, loadError("setsockopt", errs[0]))
			}
			return nil
		}
		errs = append(errs, err)
	}
	return loadError("sockops", errors.Join(errs...))
}

// reused are the maps of the agent before that the programs go on with.
func (p *Programs) reused(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	out := make(map[string]*ebpf.Map)
	for name, m := range spec.Maps {
		if have := p.found.usable(name, m); have != nil {
			out[name] = have
		}
	}
	return out
}

// loadObject loads one object that shares what it can with the sockops program:
// policy, records, counters and events.
func (p *Programs) loadObject(name string, load func() (*ebpf.CollectionSpec, error), to any) error {
	spec, err := load()
	if err != nil {
		return fmt.Errorf("read %s object: %w", name, err)
	}
	if err := errors.Join(setHZ(spec), p.setGuard(spec)); err != nil {
		return err
	}
	shared := make(map[string]*ebpf.Map)
	for name, m := range map[string]*ebpf.Map{
		sockopsMapShRecords: p.sockops.ShRecords,
		sockopsMapShPolicy:  p.sockops.ShPolicy,
		sockopsMapShStats:   p.sockops.ShStats,
		sockopsMapShFaults:  p.sockops.ShFaults,
		sockopsMapShEvents:  p.sockops.ShEvents,
		sockopsMapShServers: p.sockops.ShServers,
	} {
		if spec.Maps[name] != nil {
			shared[name] = m
		}
	}
	if err := spec.LoadAndAssign(to, p.types.options(shared)); err != nil {
		return loadError(name, err)
	}
	return nil
}

// loadError translates what the kernel says to a program. EPERM can have
// several causes; the capabilities were found complete before.
func loadError(name string, err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return fmt.Errorf("load %s program: %w", name, err)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &MissingError{
			What:   fmt.Sprintf("the kernel refuses the %s program", name),
			Remedy: "check kernel lockdown, SELinux and seccomp for the bpf system call",
			Err:    err,
		}
	}
	return fmt.Errorf("load %s program: %w", name, err)
}

// setHZ tells the programs how many ticks a second has: keepalive times and
// ages are in ticks inside the kernel. The coarse clock advances once a tick.
func setHZ(spec *ebpf.CollectionSpec) error {
	v, ok := spec.Variables[sockopsVarHz]
	if !ok {
		return nil // this object counts no ticks
	}
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return fmt.Errorf("ask for the kernel's tick: %w", err)
	}
	if res.Nano() <= 0 {
		return fmt.Errorf("ask for the kernel's tick: %d ns", res.Nano())
	}
	if err := v.Set(uint32((1_000_000_000 + res.Nano()/2) / res.Nano())); err != nil {
		return fmt.Errorf("configure the tick: %w", err)
	}
	return nil
}

// closeLimit is how long Close waits for walks that are under way.
const closeLimit = time.Second

// Close lets go of programs, links and maps. Those that are pinned stay, and go on
// with the policy in force; others come off their cgroup and are freed. Options
// that were set on sockets stay as they are either way. A walk that is held up by a
// locked socket still uses the objects: they are left to the end of the process
// then, and the error wraps ErrWalking.
func (p *Programs) Close() error {
	beat := p.Beat()
	p.letGo()
	for began := time.Now(); !p.walks.TryLock(); time.Sleep(time.Millisecond) {
		if time.Since(began) > closeLimit {
			return fmt.Errorf("close programs: %w, they stay loaded until the process ends", ErrWalking)
		}
	}
	defer p.walks.Unlock()
	p.closed = true
	return errors.Join(beat, p.Settle(), p.closeKept(), p.sockops.Close(), p.lookup.Close(), p.holders.close(),
		p.iter.close(), p.provoke.close(), p.destroy.close(), p.adopt.close(), p.guard.close(), p.silence.close())
}

// use keeps the objects from being freed until done; not ok: they are.
func (p *Programs) use() (done func(), ok bool) {
	p.walks.RLock()
	if p.closed {
		p.walks.RUnlock()
		return nil, false
	}
	return p.walks.RUnlock, true
}
