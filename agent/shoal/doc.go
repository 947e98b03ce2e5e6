// Command shoal is the operator's tool: it starts and stops a one-machine
// cluster (up, down), shows how it does (status) and handles container images.
// It runs shoal-coordinator and shoal-agent, which it expects beside itself or
// on PATH, and holds no cluster logic of its own.
package main
