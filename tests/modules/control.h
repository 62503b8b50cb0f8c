/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Two files in /sys/kernel/debug/MODULE: what is written to `run` is done, and `log` has what was really done, one
 * line an event, in words NAME=VALUE. Times are those of CLOCK_MONOTONIC, as bpf_ktime_get_ns() has them.
 */
#ifndef WPTEST_CONTROL_H
#define WPTEST_CONTROL_H

#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#define LOG_SIZE (1 << 18)
#define LOG_LINE 256

static char log_text[LOG_SIZE];
static size_t log_used;
static bool log_full;
static DEFINE_SPINLOCK(log_lock);
static struct dentry *control;

/* What each module does with a command. */
static int run(const char *command);

static __printf(1, 2) void log_line(const char *format, ...)
{
	unsigned long flags;
	va_list arguments;

	spin_lock_irqsave(&log_lock, flags);
	log_full = log_full || LOG_SIZE - log_used <= LOG_LINE;
	if (!log_full) {
		va_start(arguments, format);
		log_used += vscnprintf(log_text + log_used, LOG_LINE, format, arguments);
		va_end(arguments);
		log_text[log_used++] = '\n';
	}
	spin_unlock_irqrestore(&log_lock, flags);
}

static ssize_t log_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	unsigned long flags;
	size_t used;

	spin_lock_irqsave(&log_lock, flags);
	used = log_used;
	spin_unlock_irqrestore(&log_lock, flags);
	/* Rather no log than half of one. */
	if (log_full)
		return -ENOSPC;
	return simple_read_from_buffer(to, size, at, log_text, used);
}

static ssize_t run_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char command[64] = "";
	int error;

	if (size >= sizeof(command))
		return -EINVAL;
	if (copy_from_user(command, from, size))
		return -EFAULT;
	error = run(command);
	return error ? error : size;
}

static const struct file_operations log_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = log_read,
};

static const struct file_operations run_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = run_write,
};

static void control_create(void)
{
	control = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("run", 0200, control, NULL, &run_operations);
	debugfs_create_file("log", 0400, control, NULL, &log_operations);
}

/* Returns when nobody is in run() any more. */
static void control_remove(void)
{
	debugfs_remove_recursive(control);
}

#endif
