import 'reflect-metadata';
import type { AddressInfo } from 'node:net';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { converse, say } from './conversation';
import { LockService } from './lock.service';
import { OrdersController } from './orders.controller';
import { ShippingService } from './shipping.service';

@Module({
  controllers: [OrdersController],
  providers: [
    { provide: Redis, useFactory: () => new Redis(process.env.REDIS_URL ?? 'redis://127.0.0.1:6379') },
    LockService,
    ShippingService,
  ],
})
class AppModule {}

async function main(): Promise<void> {
  // Stdout is for replies: errors go to stderr, the rest nowhere.
  const app = await NestFactory.create(AppModule, { logger: ['error', 'fatal'] });
  await app.get(Redis).ping();
  await app.listen(0, '127.0.0.1');
  const { port } = app.getHttpServer().address() as AddressInfo;
  say({ id: 0, ok: true, value: `http://127.0.0.1:${port}` });
  await converse(app.get(LockService));
  process.exit();
}

void main();
