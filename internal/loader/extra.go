// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"io"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// Types are the running kernel's types (BTF), which the programs are fitted to. To
// read them takes longer than most programs take to load: whoever loads more than
// once hands the same ones to each. They are read at their first use, keep some
// megabytes, and serve several at a time. The zero value is ready.
type Types struct {
	cache btf.Cache
	// altered are taken for the kernel's, for tests.
	altered *btf.Spec
}

// kernel returns the types.
func (t *Types) kernel() (*btf.Spec, error) {
	if t.altered != nil {
		return t.altered, nil
	}
	return t.cache.Kernel()
}

// options are those of a load whose programs go on with maps that are there.
func (t *Types) options(maps map[string]*ebpf.Map) *ebpf.CollectionOptions {
	return &ebpf.CollectionOptions{
		MapReplacements: maps, Cache: &t.cache, Programs: ebpf.ProgramOptions{KernelTypes: t.altered},
	}
}

// extra is an object that gives what not every kernel has: without it the agent
// bounds and judges still. It is loaded at its first use, once. The zero value is
// ready. Whoever calls get holds Programs.use.
type extra[T io.Closer] struct {
	once    sync.Once
	objects T
	lacks   error
}

// get returns the objects, or why this kernel does not have them.
func (e *extra[T]) get(load func() (T, error)) (T, error) {
	e.once.Do(func() { e.objects, e.lacks = load() })
	return e.objects, e.lacks
}

// close frees them, where they were loaded.
func (e *extra[T]) close() error {
	e.once.Do(func() { e.lacks = ErrClosed })
	if e.lacks != nil {
		return nil
	}
	return e.objects.Close()
}

// scanner, provoker and destroyer are the walks of their features.
func (p *Programs) scanner() (*iterObjects, error) {
	return p.iter.get(func() (*iterObjects, error) { return loadExtra[iterObjects](p, kernel.Scan, loadIter) })
}

func (p *Programs) provoker() (*provokeObjects, error) {
	return p.provoke.get(func() (*provokeObjects, error) {
		return loadExtra[provokeObjects](p, kernel.Provoke, loadProvoke)
	})
}

func (p *Programs) destroyer() (*destroyObjects, error) {
	return p.destroy.get(func() (*destroyObjects, error) {
		return loadExtra[destroyObjects](p, kernel.BPFDestroy, loadDestroy)
	})
}

// loadExtra loads the object that gives a feature.
func loadExtra[T any](p *Programs, f kernel.Feature, load func() (*ebpf.CollectionSpec, error)) (*T, error) {
	to := new(T)
	if err := p.loadObject(f.String(), load, to); err != nil {
		return nil, lacking(f, err)
	}
	return to, nil
}

// LoadAll loads what is otherwise loaded at its first use, so that nobody waits for
// it then, and gives up the types. Nothing else may use the programs meanwhile.
func (p *Programs) LoadAll() {
	for _, f := range append(Features(), kernel.Adopt, kernel.Guard, kernel.RTOCap, kernel.SocketCgroup) {
		_ = p.Lacks(f) // it says so again to whoever needs it
	}
	if done, ok := p.use(); ok {
		defer done()
		_, _ = p.holders.get(p.loadHolderWalks)
		p.types = new(Types)
	}
}

// Lacks returns why the kernel does not give a feature, nil where it does. The
// error wraps ErrUnsupported. The first to ask waits for what gives it to load:
// some tens of milliseconds.
func (p *Programs) Lacks(f kernel.Feature) (err error) {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("%s: %w", f, ErrClosed)
	}
	defer done()
	switch f {
	case kernel.Hold:
		return p.noHold
	case kernel.Scan:
		_, err = p.scanner()
	case kernel.Provoke:
		_, err = p.provoker()
	case kernel.BPFDestroy:
		_, err = p.destroyer()
	case kernel.Silence:
		_, err = p.silencer()
	case kernel.SocketCgroup:
		p.cgroups.Do(func() {
			if why := p.types.socketCgroup(); why != nil {
				p.noGroup = lacking(f, why)
			}
		})
		err = p.noGroup
	case kernel.Guard:
		_, err = p.guarder()
	case kernel.RTOCap:
		err = p.capsRTO()
	case kernel.Adopt:
		_, err = p.adopter()
	case kernel.AdoptEvents:
		var a *adoption
		if a, err = p.adopter(); err == nil {
			err = a.noCallbacks
		} else {
			err = lacking(f, err)
		}
	}
	return err
}

// lacking says that a feature is not there: the kernel is too old, or refuses
// what it ought to take.
func lacking(f kernel.Feature, why error) error {
	return fmt.Errorf("%s: %w [needs Linux %s]: %w", f, ErrUnsupported, f.Since(), why)
}
