package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"time"
)

// A fault is something bad that happens to a machine, and is over when do returns.
type fault struct {
	name string
	// coordinator: it happens to a coordinator; spread: to the network of all.
	coordinator, spread bool
	do                  func(context.Context, *chaos, *container, *rand.Rand) error
}

var faults = []fault{
	{name: "agent killed", do: killed("shoal-agent")},
	{name: "coordinator killed", coordinator: true, do: killed("shoal-coordinator")},
	{name: "agent stands still", do: standsStill("shoal-agent")},
	{name: "coordinator stands still", coordinator: true, do: standsStill("shoal-coordinator")},
	{name: "power cut", do: powerCut},
	{name: "reboot", do: func(ctx context.Context, c *chaos, m *container, _ *rand.Rand) error {
		c.down(m)
		defer c.down(m)
		return m.reboot(ctx)
	}},
	{name: "cut off", do: filtered("iifname \"%[1]s\" drop\noifname \"%[1]s\" drop")},
	{name: "heard by nobody", do: filtered("iifname \"%s\" drop")},
	{name: "hears nobody", do: filtered("oifname \"%s\" drop")},
	{name: "a fifth of the packets lost", spread: true, do: filtered("numgen random mod 100 < 20 drop")},
	{name: "link comes and goes", do: flapping},
	{name: "disk full", do: diskFull},
	{name: "disk stands still", do: diskFrozen},
	{name: "upgrade", do: upgrades},
	{name: "coordinator removed", coordinator: true, do: removed},
}

// seconds is a random time of low to high seconds.
func seconds(r *rand.Rand, low, high int) time.Duration {
	return time.Duration(low)*time.Second + time.Duration(r.Int64N(int64(time.Duration(high-low)*time.Second)+1))
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func killed(unit string) func(context.Context, *chaos, *container, *rand.Rand) error {
	return func(ctx context.Context, _ *chaos, m *container, r *rand.Rand) error {
		for range 1 + r.IntN(3) {
			if _, err := m.sh(ctx, "systemctl kill --kill-whom=main -s KILL "+unit+" || true"); err != nil {
				return err
			}
			sleep(ctx, seconds(r, 0, 4))
		}
		return nil
	}
}

func standsStill(unit string) func(context.Context, *chaos, *container, *rand.Rand) error {
	return func(ctx context.Context, _ *chaos, m *container, r *rand.Rand) error {
		const kill = "systemctl kill --kill-whom=main -s "
		return during(ctx, m, kill+"STOP "+unit, seconds(r, 1, 12), kill+"CONT "+unit)
	}
}

// during runs one command, and another after a time.
func during(ctx context.Context, m *container, begin string, d time.Duration, end string) error {
	if _, err := m.sh(ctx, begin); err != nil {
		return err
	}
	sleep(ctx, d)
	_, err := m.sh(context.WithoutCancel(ctx), end)
	return err
}

func powerCut(ctx context.Context, c *chaos, m *container, r *rand.Rand) error {
	c.down(m)
	defer c.down(m)
	m.cut()
	sleep(ctx, seconds(r, 0, 15))
	return m.boot(context.WithoutCancel(ctx))
}

// filtered drops packets between machines; the rig itself stands on the bridge and
// reaches all of them.
func filtered(rules string) func(context.Context, *chaos, *container, *rand.Rand) error {
	return func(ctx context.Context, c *chaos, m *container, r *rand.Rand) error {
		if err := c.filter(ctx, m, rules); err != nil {
			return err
		}
		sleep(ctx, seconds(r, 3, 25))
		return c.filter(context.WithoutCancel(ctx), m, "")
	}
}

func flapping(ctx context.Context, c *chaos, m *container, r *rand.Rand) error {
	for range 3 + r.IntN(10) {
		for _, rules := range []string{"iifname \"%[1]s\" drop\noifname \"%[1]s\" drop", ""} {
			if err := c.filter(context.WithoutCancel(ctx), m, rules); err != nil {
				return err
			}
			sleep(ctx, seconds(r, 0, 2))
		}
	}
	return nil
}

// filter has a table for each machine, with these rules alone; none means no table.
func (c *chaos) filter(ctx context.Context, m *container, rules string) error {
	table := "chaos-" + nodeName(m)
	text := "add table bridge " + table + "\ndelete table bridge " + table + "\n"
	if rules != "" {
		if strings.Contains(rules, "%") && strings.Contains(rules, "name") {
			rules = fmt.Sprintf(rules, "vb-"+nodeName(m))
		}
		text += "table bridge " + table + " {\nchain forward {\ntype filter hook forward priority 0\n" + rules + "\n}\n}\n"
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+lan, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// diskFull fills the disk of the product's state, the store's and the images' too.
func diskFull(ctx context.Context, _ *chaos, m *container, r *rand.Rand) error {
	return during(ctx, m, "dd if=/dev/zero of=/var/lib/shoal/full bs=1M >/dev/null 2>&1 || true; sync",
		seconds(r, 2, 15), "rm /var/lib/shoal/full")
}

// diskFrozen has writes wait. What the machine itself wants to write there waits too,
// so it is the rig that thaws.
func diskFrozen(ctx context.Context, c *chaos, m *container, r *rand.Rand) error {
	disk := c.disk(m)
	if err := command(ctx, "fsfreeze", "-f", disk); err != nil {
		return err
	}
	sleep(ctx, seconds(r, 1, 6))
	return command(context.WithoutCancel(ctx), "fsfreeze", "-u", disk)
}

// upgrades installs the version that is not installed.
func upgrades(ctx context.Context, _ *chaos, m *container, _ *rand.Rand) error {
	_, err := m.sh(ctx, admin+`number=2; dpkg-query -W -f '${Version}' shoal | grep -q fleet.2 && number=1
apt-get install -qqy --allow-downgrades --no-install-recommends /opt/fleet/shoal-$number.deb`+orTell)
	return err
}

// removed takes a coordinator away by another one, and has it join again.
func removed(ctx context.Context, c *chaos, m *container, r *rand.Rand) error {
	other := c.coordinators[0]
	for other == m {
		other = c.coordinators[1+r.IntN(len(c.coordinators)-1)]
	}
	if said, err := other.sh(ctx, admin+"until_ 30 shoal coordinators remove "+nodeName(m)); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	sleep(ctx, seconds(r, 0, 5))
	token, err := other.sh(ctx, admin+"until_ 30 shoal token create --coordinator >/dev/null; cat /tmp/until")
	if err != nil {
		return err
	}
	said, err := m.sh(ctx, admin+"systemctl stop shoal-coordinator; mv /var/lib/shoal/coordinator /var/lib/shoal/old-$(date +%s%N)\n"+
		"rm -rf /var/lib/shoal/old-*; systemd-tmpfiles --create; until_ 60 shoal join --coordinator "+token)
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}
