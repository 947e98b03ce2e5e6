// Package keeper stops pods at a deadline that the agent sets, whether the agent still
// lives or not: it is the process shoal-fence, the directory by which the agent talks to
// it, and the killing itself, which the agent uses too. It imports little, so that the
// process is small enough to stay in memory.
package keeper
