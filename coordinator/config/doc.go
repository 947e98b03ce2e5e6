// Package config is the coordinator's configuration: one YAML file, with flags
// that override it.
package config
