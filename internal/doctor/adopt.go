// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// adoptPolicy names the connections of the bench.
const adoptPolicy = `version: 1
peers: [{name: doctor, cidrs: [127.0.0.0/8]}]
`

// adopt brings a connection in line that the programs, which are not attached,
// did not see open.
func adopt(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	if err := b.programs.Lacks(kernel.Adopt); err != nil {
		return "", err
	}
	pol, err := policy.Parse("doctor.yaml", []byte(adoptPolicy))
	if err != nil {
		return "", err
	}
	if err := b.programs.SetPolicy(pol); err != nil {
		return "", err
	}
	p, err := b.connect()
	if err != nil {
		return "", err
	}
	defer p.close()
	found := loader.Adoption{}
	err = b.ns.Do(func() error {
		_, err := b.programs.Adopt(loader.AdoptOptions{}, func(a loader.Adoption) error {
			if a.Cookie == p.id.Cookie {
				found = a
			}
			return nil
		})
		return err
	})
	if err != nil {
		return "", err
	}
	if found.Outcome != loader.Adopted || found.Wait != loader.WaitNone {
		return "", fmt.Errorf("a walk met the connection as %q, and waits for %s", found.Outcome, found.Wait)
	}
	snap, err := sockets.New(b.programs).Again(b.ns, p.id)
	if want := pol.Peers[0].Options.UserTimeout; err == nil && snap.Options.UserTimeout != want {
		err = fmt.Errorf("set a user timeout of %s, found %s", want, snap.Options.UserTimeout)
	}
	return "bounds a connection that is older than the programs", err
}

// adoptEvents asks what the programs made of the kernel when they were loaded.
func adoptEvents(b *bench) (string, error) {
	if b.programs == nil {
		return "", fmt.Errorf("%w: needs the programs", errUntested)
	}
	return "such a connection is told of like any other", b.programs.Lacks(kernel.AdoptEvents)
}
