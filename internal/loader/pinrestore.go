// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// Leave makes no policy name anybody any more, so that no connect() comes under a
// bound, and none keeps that of its connect() when it is made: a pass of Adopt with
// Connects gives those that are under way then what they had. It is for programs
// that are about to come off. The error wraps ErrUnsupported before Linux 5.15;
// nothing is changed then.
func (p *Programs) Leave() error {
	if err := p.Lacks(kernel.Adopt); err != nil {
		return fmt.Errorf("take leave of connections that are made: %w", err)
	}
	return p.SetPolicy(&policy.Policy{})
}

// Release makes programs that LoadPinned has loaded let go of every connection:
// none comes under a policy any more, and each pass of Adopt gives the connections
// of a namespace back what their applications last asked for. Until the pins are
// removed the setsockopt program still hears what applications ask for meanwhile.
// The error wraps ErrUnsupported before Linux 5.15; nothing is changed then.
func (p *Programs) Release() error {
	if err := p.Lacks(kernel.Adopt); err != nil {
		return fmt.Errorf("give options back: %w", err)
	}
	if err := p.upgrade(); err != nil {
		return err
	}
	if err := p.pins.removeLink(sockopsName); err != nil {
		return err
	}
	return errors.Join(p.takeover.Lost, p.SetPolicy(&policy.Policy{}))
}
