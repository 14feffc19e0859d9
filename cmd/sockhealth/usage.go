// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError puts an error of the flag parser into the words of this program: which
// flag, what was given, what it takes.
func flagError(_ *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &invalid):
		return usagef("%s %q: want %s", flagName(invalid.GetFlag()), invalid.GetValue(), wanted(invalid.GetFlag()))
	case errors.As(err, &bare):
		return usagef("%s needs a value: want %s", flagName(bare.GetFlag()), wanted(bare.GetFlag()))
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return usagef("unknown flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &unknown):
		return usagef("unknown flag --%s", unknown.GetSpecifiedName())
	case errors.As(err, &syntax):
		return usagef("%q is no flag: want --NAME or --NAME=VALUE", syntax.GetSpecifiedFlag())
	}
	return usageError{err}
}

func flagName(f *pflag.Flag) string { return "--" + f.Name }

// wanter is a flag's value that knows what it takes.
type wanter interface{ want() string }

// wanted says what a flag takes.
func wanted(f *pflag.Flag) string {
	if w, ok := f.Value.(wanter); ok {
		return w.want()
	}
	switch f.Value.Type() {
	case "duration":
		return "a time with its unit, such as 2s, 500ms or 1m30s"
	case "bool":
		return "true or false"
	}
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// number is a flag that takes a number above 0. The zero value stands for none.
type number[T uint32 | uint64] struct{ to *T }

// String, Set and Type make it a pflag.Value.
func (n number[T]) String() string {
	if n.to == nil || *n.to == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*n.to), 10)
}

func (n number[T]) Set(s string) error {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil || v == 0 || v > uint64(^T(0)) {
		return errors.New(n.want())
	}
	*n.to = T(v)
	return nil
}

func (number[T]) Type() string { return "number" }

func (number[T]) want() string {
	return fmt.Sprintf("a whole number from 1 to %d", ^T(0))
}

// noEmpty refuses a flag that is given without a word: a script's variable that is
// not set would else ask for everything, or for the default.
func noEmpty(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
			err = usagef("%s is empty: give it a value (%s), or leave it out", flagName(f), wanted(f))
		}
	})
	return err
}
