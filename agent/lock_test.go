package main

import (
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/config"
)

func TestSecondAgent(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	l, err := lockData(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockData(&c); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("second lock: %v", err)
	}
	l.Close()
	l, err = lockData(&c)
	if err != nil {
		t.Errorf("after the first ended: %v", err)
	} else {
		l.Close()
	}
}
