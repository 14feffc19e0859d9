// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// socketCgroup asks which cgroup the connection belongs to.
func socketCgroup(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	if err := b.programs.Lacks(kernel.SocketCgroup); err != nil {
		return "", err
	}
	s, err := b.look()
	if err == nil && s.Cgroup == 0 {
		err = errors.New("a look does not tell the cgroup of the connection")
	}
	return "a look tells the cgroup of a connection", err
}
