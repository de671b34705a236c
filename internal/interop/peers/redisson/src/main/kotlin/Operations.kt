package watchlock.interop

import org.redisson.api.RFencedLock
import java.util.concurrent.TimeUnit.MILLISECONDS

/** What a request may ask for. A lease of -1 means that the watchdog renews, and times are in milliseconds. */
val operations: Map<String, (Call) -> Any?> = benchmarks + mapOf(
    "open" to { call -> Client.open(call) },
    "close" to { call -> Client.close(call.text("client")) },
    "log" to { Log.take() },
    "hush" to { hush() },
    "version" to { org.redisson.Redisson::class.java.getPackage().implementationVersion ?: "" },

    "threadId" to { call -> Thread.currentThread().id },
    "interrupt" to { call -> call.client().interrupt(call.text("thread")) },
    "pause" to { call -> Thread.sleep(call.long("millis", 0)) },

    "lock" to { call -> call.lock().lock(call.lease(), MILLISECONDS) },
    "lockInterruptibly" to { call -> call.lock().lockInterruptibly(call.lease(), MILLISECONDS) },
    "tryLock" to { call -> call.lock().tryLock(call.long("wait", 0), call.lease(), MILLISECONDS) },
    "unlock" to { call -> call.lock().unlock() },
    "forceUnlock" to { call -> call.lock().forceUnlock() },
    "isLocked" to { call -> call.lock().isLocked },
    "isHeldByCurrentThread" to { call -> call.lock().isHeldByCurrentThread },
    "getHoldCount" to { call -> call.lock().holdCount },
    "remainTimeToLive" to { call -> call.lock().remainTimeToLive() },

    "lockAndGetToken" to { call -> call.fencedLock().lockAndGetToken(call.lease(), MILLISECONDS) },
    "tryLockAndGetToken" to { call -> call.fencedLock().tryLockAndGetToken(call.long("wait", 0), call.lease(), MILLISECONDS) },
    "getToken" to { call -> call.fencedLock().token },

    "sections" to ::sections,
    "takeToken" to ::takeToken,
    "noteTokens" to ::noteTokens,
)

private fun Call.lock() = client().lock(name, fenced)

private fun Call.fencedLock() = client().lock(name, true) as RFencedLock

private fun Call.lease() = long("lease", -1)
