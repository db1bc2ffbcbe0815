// Package claim says which settings of an lgpu a ResourceClaim's allocation means, and whether there is room for them. It is
// pure; what claims say comes from users of the cluster and is not believed.
package claim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// The type of the opaque configuration.
const (
	ConfigVersion = "lgpu.io/v1"
	ConfigKind    = "LgpuConfig"
)

// Config is what a claim or a device class may say of its lgpu beside the capacity: opaque configuration of DRA.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Weight is lgpu.weight, 1 to 10000.
	Weight *int `json:"weight,omitempty"`
	// Cap and Minimum are compute.max and compute.min, in percent of the device's time.
	Cap     *int `json:"cap,omitempty"`
	Minimum *int `json:"minimum,omitempty"`
	// List is which compute units the lgpu has, in the grammar of the file lgpu: "0-3,8". A device that takes turns has none.
	List string `json:"list,omitempty"`
	// Priority is lgpu.priority: normal, high or latency.
	Priority string `json:"priority,omitempty"`
	// Overcommit lets memory of the claim's programs leave the device (memory.overcommit).
	Overcommit *bool `json:"overcommit,omitempty"`
}

// list are the characters that a list may have: it becomes a word of the file lgpu.
var list = regexp.MustCompile(`^[0-9Nal,:/-]{1,256}$`)

// ParseConfig reads a configuration. Fields that it does not know are errors, as is a value that the daemon would refuse.
func ParseConfig(data []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("configuration: something follows the object")
	}
	return c, c.check()
}

func (c Config) check() error {
	within := func(name string, value *int, least, most int) error {
		if value == nil || *value >= least && *value <= most {
			return nil
		}
		return fmt.Errorf("configuration: %s is %d, and can be %d to %d", name, *value, least, most)
	}
	if c.APIVersion != ConfigVersion || c.Kind != ConfigKind {
		return fmt.Errorf("configuration: it is %.64q %.64q, and has to be %s %s", c.APIVersion, c.Kind, ConfigVersion, ConfigKind)
	}
	switch c.Priority {
	case "", "normal", "high", "latency":
	default:
		return fmt.Errorf("configuration: priority is %.64q, and can be normal, high or latency", c.Priority)
	}
	if c.List != "" && !list.MatchString(c.List) {
		return fmt.Errorf("configuration: list is %.64q, and can be as 0-3,8 (docs/files.md, Lists)", c.List)
	}
	if err := c.ordered(); err != nil {
		return err
	}
	return errors.Join(within("weight", c.Weight, 1, 10000), within("cap", c.Cap, 1, 100), within("minimum", c.Minimum, 0, 100))
}

// ordered returns an error if the minimum is above the cap.
func (c Config) ordered() error {
	if c.Cap != nil && c.Minimum != nil && *c.Minimum > *c.Cap {
		return fmt.Errorf("configuration: minimum %d is above cap %d", *c.Minimum, *c.Cap)
	}
	return nil
}

// over returns c with what another says in place of its own.
func (c Config) over(other Config) Config {
	if other.Weight != nil {
		c.Weight = other.Weight
	}
	if other.Cap != nil {
		c.Cap = other.Cap
	}
	if other.Minimum != nil {
		c.Minimum = other.Minimum
	}
	if other.List != "" {
		c.List = other.List
	}
	if other.Priority != "" {
		c.Priority = other.Priority
	}
	if other.Overcommit != nil {
		c.Overcommit = other.Overcommit
	}
	return c
}
