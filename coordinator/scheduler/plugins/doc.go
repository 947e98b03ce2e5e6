// Package plugins holds the scheduler's built-in plugins, one file each, with
// upstream's names, arguments and messages. Registry lists them.
package plugins
